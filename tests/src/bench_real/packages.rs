//! Downloads Debian packages once, and unpacks only the required files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use symbolic::common::ByteView;
use symbolic::debuginfo::Object;

use super::{BenchError, detail};

/// A program with its debug information.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its short name.
    pub name: &'static str,
    /// The package that contains it.
    pub package: &'static str,
    /// The package that contains its debug information.
    pub debug_package: &'static str,
    /// The end of its path.
    pub path: &'static str,
}

/// The programs: C with assembler and many aliases, and C++ with many inlined calls.
pub const SOURCES: [Source; 2] = [
    Source {
        name: "libc",
        package: "libc6",
        debug_package: "libc6-dbg",
        path: "/libc.so.6",
    },
    Source {
        name: "ceph-osd",
        package: "ceph-osd",
        debug_package: "ceph-osd-dbg",
        path: "/bin/ceph-osd",
    },
];

/// A large program that runs anywhere with deep call stacks: the Java virtual machine with its
/// compilers.
pub const JVM: Source = Source {
    name: "libjvm",
    package: "openjdk-17-jre-headless",
    debug_package: "openjdk-17-dbg",
    path: "/server/libjvm.so",
};

const NO_LISTS: &str =
    "; run apt-get update, and check that this version of Debian has the package";

/// The files of a program.
#[derive(Clone, Debug)]
pub struct Files {
    /// The package with its version.
    pub version: String,
    /// The program, stripped.
    pub program: PathBuf,
    /// Its debug information.
    pub debug: PathBuf,
}

/// Checks that the required tools are installed.
///
/// # Errors
/// [`BenchError::MissingTool`].
pub fn check_tools() -> Result<(), BenchError> {
    let tools = [
        ("apt-get", "apt"),
        ("dpkg-deb", "dpkg"),
        ("tar", "tar"),
        ("eu-addr2line", "elfutils"),
    ];
    for (tool, package) in tools {
        let tried = Command::new(tool)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if tried.is_err() {
            return Err(BenchError::MissingTool { tool, package });
        }
    }
    Ok(())
}

/// Returns the files of a program. Downloads and unpacks missing files.
///
/// # Errors
/// A package is not available, or lacks an expected file.
pub fn files(cache: &Path, source: Source) -> Result<Files, BenchError> {
    std::fs::create_dir_all(cache).map_err(BenchError::file(cache))?;
    let package = download(cache, source.package)?;
    let debug_package = download(cache, source.debug_package)?;
    let version = stem(&debug_package);
    let program = cache.join(format!("{}.{}", stem(&package), source.name));
    if !program.is_file() {
        let is_it = |path: &str| path.ends_with(source.path) && !path.contains("hwcaps");
        unpack(&package, source.path, is_it, &program)?;
    }
    let debug = cache.join(format!("{version}.{}.debug", source.name));
    if !debug.is_file() {
        let id = build_id(&program)?;
        let wanted = format!(
            "/.build-id/{}/{}.debug",
            id.get(..2).unwrap_or_default(),
            id.get(2..).unwrap_or_default()
        );
        unpack(
            &debug_package,
            &wanted,
            |path| path.ends_with(&wanted),
            &debug,
        )?;
    }
    Ok(Files {
        version: shown(&version),
        program,
        debug,
    })
}

/// Unpacks all files of a package unless they exist, and returns the directory. The package need
/// not be installed: its links to `/etc` are redirected to `etc` in that directory.
///
/// # Errors
/// The package is not available.
pub fn unpacked(cache: &Path, source: Source) -> Result<PathBuf, BenchError> {
    let package = download(cache, source.package)?;
    let folder = cache.join(stem(&package));
    if folder.is_dir() {
        return Ok(folder);
    }
    detail(&format!("unpacking {}", stem(&package)));
    let part = cache.join(format!("{}.part", stem(&package)));
    std::fs::create_dir_all(&part).map_err(BenchError::file(&part))?;
    let mut tar = Command::new("tar");
    tar.arg("-x").arg("-C").arg(&part).arg(format!(
        "--transform=flags=s;s|^/etc/|{}/etc/|",
        folder.display()
    ));
    let tar = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(&package)
        .pipe_to(&mut tar)?;
    run(tar, "")?;
    std::fs::rename(&part, &folder).map_err(BenchError::file(&folder))?;
    Ok(folder)
}

/// Returns the debug information of the newest kernel, and its package with the version. The
/// download is large, and is kept.
///
/// # Errors
/// The package is not available.
pub fn kernel(cache: &Path) -> Result<(PathBuf, String), BenchError> {
    std::fs::create_dir_all(cache).map_err(BenchError::file(cache))?;
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    // The package named after the architecture is empty, and depends on the newest one.
    let empty = format!("linux-image-{architecture}-dbg");
    let depends = run(
        Command::new("apt-cache").arg("depends").arg(&empty),
        NO_LISTS,
    )?;
    let newest = depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "));
    let newest = newest.ok_or_else(|| BenchError::NotInPackage {
        package: empty,
        wanted: "package that it depends on".to_owned(),
    })?;
    let package = download(cache, newest)?;
    let debug = cache.join(format!("{}.vmlinux", stem(&package)));
    if !debug.is_file() {
        let is_it = |path: &str| path.contains("/debug/boot/vmlinux-");
        unpack(&package, "/debug/boot/vmlinux-…", is_it, &debug)?;
    }
    Ok((debug, shown(&stem(&package))))
}

/// Downloads a package unless it exists.
fn download(cache: &Path, package: &str) -> Result<PathBuf, BenchError> {
    if let Some(path) = downloaded(cache, package)? {
        return Ok(path);
    }
    detail(&format!("apt-get download {package}"));
    run(
        Command::new("apt-get")
            .arg("download")
            .arg(package)
            .current_dir(cache),
        NO_LISTS,
    )?;
    downloaded(cache, package)?.ok_or_else(|| BenchError::NotInPackage {
        package: package.to_owned(),
        wanted: "file after its download".to_owned(),
    })
}

fn downloaded(cache: &Path, package: &str) -> Result<Option<PathBuf>, BenchError> {
    let prefix = format!("{package}_");
    let entries = std::fs::read_dir(cache).map_err(BenchError::file(cache))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&prefix) && name.ends_with(".deb")
        })
        .collect();
    found.sort();
    Ok(found.pop())
}

/// Unpacks one file of a package, because the others may have gigabytes.
fn unpack(
    package: &Path,
    wanted: &str,
    is_it: impl Fn(&str) -> bool,
    to: &Path,
) -> Result<(), BenchError> {
    let mut tar = Command::new("tar");
    tar.arg("-t");
    let listing = run(
        Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(package)
            .pipe_to(&mut tar)?,
        "",
    )?;
    let path =
        listing
            .lines()
            .find(|path| is_it(path))
            .ok_or_else(|| BenchError::NotInPackage {
                package: package.display().to_string(),
                wanted: wanted.to_owned(),
            })?;
    detail(&format!("unpacking {path}"));
    let part = to.with_extension("part");
    let file = File::create(&part).map_err(BenchError::file(&part))?;
    let mut tar = Command::new("tar");
    tar.arg("-xO").arg(path);
    let tar = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .pipe_to(&mut tar)?
        .stdout(file);
    run_to_end(tar, "")?;
    std::fs::rename(&part, to).map_err(BenchError::file(to))
}

fn build_id(program: &Path) -> Result<String, BenchError> {
    let unreadable = |reason: String| BenchError::Dif {
        path: program.to_owned(),
        reason,
    };
    let view = ByteView::open(program).map_err(BenchError::file(program))?;
    let object = Object::parse(&view).map_err(|error| unreadable(error.to_string()))?;
    object
        .code_id()
        .map(|id| id.to_string())
        .ok_or_else(|| unreadable("it has no build id".to_owned()))
}

/// Returns the name and version of a package for display.
fn shown(stem: &str) -> String {
    stem.replace("_amd64", "")
        .replace("_arm64", "")
        .replace('_', " ")
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Pipes one command into another.
trait PipeTo {
    /// Starts this command with its output piped into another, which is returned ready to start.
    fn pipe_to<'a>(&mut self, other: &'a mut Command) -> Result<&'a mut Command, BenchError>;
}

impl PipeTo for Command {
    fn pipe_to<'a>(&mut self, other: &'a mut Command) -> Result<&'a mut Command, BenchError> {
        let tool = |source| BenchError::Tool {
            tool: self.get_program().to_string_lossy().into_owned(),
            source,
        };
        let mut first = Command::new(self.get_program());
        first.args(self.get_args()).stdout(Stdio::piped());
        let mut first = first.spawn().map_err(tool)?;
        if let Some(out) = first.stdout.take() {
            other.stdin(out);
        }
        // The process ends when its output is written, or when the reader ends.
        std::thread::spawn(move || first.wait());
        Ok(other)
    }
}

fn run(command: &mut Command, hint: &'static str) -> Result<String, BenchError> {
    run_to_end(command.stdout(Stdio::piped()), hint)
}

fn run_to_end(command: &mut Command, hint: &'static str) -> Result<String, BenchError> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| BenchError::Tool {
            tool: tool.clone(),
            source,
        })?;
    let output = child
        .wait_with_output()
        .map_err(|source| BenchError::Tool { tool, source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BenchError::ToolFailed {
        command: format!("{command:?}"),
        status: output.status,
        said,
        hint,
    })
}
