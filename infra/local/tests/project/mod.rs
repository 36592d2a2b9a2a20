//! A project that the local stack can run: a small template, and the probe function under the
//! template's function names.

use std::path::{Path, PathBuf};

/// Writes the template and the functions into `folder`; returns their paths.
pub(crate) fn write_project(folder: &Path) -> (PathBuf, PathBuf) {
    let template = folder.join("template.yaml");
    std::fs::write(&template, include_str!("template.yaml")).unwrap();
    let functions = folder.join("functions");
    std::fs::create_dir(&functions).unwrap();
    for name in ["probe-function", "sweeper"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_probe-function"), functions.join(name))
            .unwrap();
    }
    (template, functions)
}
