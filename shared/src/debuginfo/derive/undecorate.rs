//! Names of C functions, which compilers for Windows decorate.

/// Returns the name of a C function without its decoration, and any other name unchanged.
///
/// Source: Microsoft, "Decorated names", "Format of a C decorated name": `_name` (`__cdecl`),
/// `_name@bytes` (`__stdcall`), `@name@bytes` (`__fastcall`), `name@@bytes` (`__vectorcall`), where
/// `bytes` is the decimal size of the parameters. Names of C++ begin with `?`, or are already
/// readable.
pub(super) fn undecorated(name: &str) -> &str {
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
    let Some(rest) = name.strip_prefix(['@', '_']) else {
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
            assert_eq!(undecorated(decorated), name);
        }
    }
}
