//! Names of C functions, which compilers for Windows decorate.

use symbolic::common::{Arch, CpuFamily};

/// Returns the name of a C function without its decoration, and any other name unchanged.
///
/// Source: Microsoft, "Decorated names", "Format of a C decorated name": `_name` (`__cdecl`),
/// `_name@bytes` (`__stdcall`), `@name@bytes` (`__fastcall`), `name@@bytes` (`__vectorcall`), where
/// `bytes` is the decimal size of the parameters. On 64-bit machines and on Arm, only the last form
/// is used. Names of C++ begin with `?`, or are already readable.
pub(super) fn undecorated(name: &str, arch: Arch) -> &str {
    let without_size = |name: &str, separator: &str| {
        let (name, size) = name.rsplit_once(separator)?;
        size.parse::<u32>().is_ok().then_some(name.len())
    };
    if name.starts_with('?') || name.contains([':', '(', '<']) {
        return name;
    }
    if let Some(length) = without_size(name, "@@") {
        return &name[..length];
    }
    let is_decorated = arch.cpu_family() == CpuFamily::Intel32;
    let Some(rest) = name.strip_prefix(['@', '_']).filter(|_| is_decorated) else {
        return name;
    };
    match without_size(rest, "@") {
        Some(length) => &rest[..length],
        None => name.strip_prefix('_').unwrap_or(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_c_functions_are_undecorated() {
        for (decorated, name) in [
            ("_main", "main"),
            ("__start", "_start"),
            ("_WinMain@16", "WinMain"),
            ("@fast@8", "fast"),
            ("vector@@32", "vector"),
            ("@fast", "@fast"),
            ("_a@b", "a@b"),
            ("plain", "plain"),
            ("?f@@YAXXZ", "?f@@YAXXZ"),
            ("_app::run", "_app::run"),
            ("_f<int>@4", "_f<int>@4"),
            ("", ""),
        ] {
            assert_eq!(undecorated(decorated, Arch::X86), name);
        }
    }

    #[test]
    fn only_vector_calls_are_decorated_on_other_machines() {
        for (decorated, name) in [
            ("__chkstk", "__chkstk"),
            ("_ZN3app3runEv", "_ZN3app3runEv"),
            ("@fast@8", "@fast@8"),
            ("vector@@32", "vector"),
        ] {
            assert_eq!(undecorated(decorated, Arch::Amd64), name);
        }
    }
}
