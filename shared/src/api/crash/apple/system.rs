//! The system of a report: its name, version and build; its architecture.

/// The name, version and build of a system, as a report writes them in one text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OsVersion {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) build: String,
}

/// The names of systems in reports, and what the systems are called today.
const SYSTEMS: [(&str, &str); 9] = [
    ("Mac OS X", "macOS"),
    ("OS X", "macOS"),
    ("macOS", "macOS"),
    ("iPhone OS", "iOS"),
    ("iOS", "iOS"),
    ("iPadOS", "iPadOS"),
    ("Apple TVOS", "tvOS"),
    ("Watch OS", "watchOS"),
    ("xrOS", "visionOS"),
];

impl OsVersion {
    /// Splits a text such as `macOS 14.1 (23B74)`. A text of another form is the name.
    pub(super) fn split(text: &str) -> Self {
        let text = text.trim();
        let (system, build) = match text
            .strip_suffix(')')
            .and_then(|text| text.split_once(" ("))
        {
            Some((system, build)) => (system, build),
            None => (text, ""),
        };
        let Some((name, version)) = system.trim_end().rsplit_once(' ') else {
            return Self::unknown(text);
        };
        let is_version = version.starts_with(|first: char| first.is_ascii_digit());
        if !is_version {
            return Self::unknown(text);
        }
        let name = name.trim_end();
        let known = SYSTEMS.iter().find(|(written, _)| *written == name);
        Self {
            name: known.map_or(name, |(_, name)| name).to_owned(),
            version: version.to_owned(),
            build: build.strip_prefix("Build ").unwrap_or(build).to_owned(),
        }
    }

    fn unknown(text: &str) -> Self {
        Self {
            name: text.to_owned(),
            ..Self::default()
        }
    }
}

/// Returns the name of the architecture in a text such as `X86-64 (Native)`; `unknown` if there is
/// none.
pub(super) fn architecture(code_type: &str) -> &'static str {
    let name = code_type.split_whitespace().next().unwrap_or_default();
    match name.to_ascii_uppercase().as_str() {
        "X86-64" => "x86_64",
        "X86" => "x86",
        "ARM-64" => "arm64",
        "ARM" => "arm",
        "PPC-64" => "ppc64",
        "PPC" => "ppc",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_all_systems_are_split() {
        let check = |text: &str, name: &str, version: &str, build: &str| {
            let split = OsVersion::split(text);
            let OsVersion {
                name: found,
                version: of,
                build: built,
            } = &split;
            assert_eq!(
                (&**found, &**of, &**built),
                (name, version, build),
                "{text}"
            );
        };
        check("Mac OS X 10.14.0 (18A391)", "macOS", "10.14.0", "18A391");
        check("macOS 14.1 (23B74)", "macOS", "14.1", "23B74");
        check("OS X 10.10.5 (Build 14F27)", "macOS", "10.10.5", "14F27");
        check("iPhone OS 15.0.1 (19A348)", "iOS", "15.0.1", "19A348");
        check("iOS 13.3", "iOS", "13.3", "");
        check("Watch OS 8.0 (19R346)", "watchOS", "8.0", "19R346");
        check("Apple TVOS 15.0 (19J346)", "tvOS", "15.0", "19J346");
        check("xrOS 1.0 (21N301)", "visionOS", "1.0", "21N301");
        check("bridgeOS 6.0 (19P744)", "bridgeOS", "6.0", "19P744");
    }

    #[test]
    fn a_text_of_another_form_is_the_name() {
        for text in ["", "???", "macOS", "macOS (23B74)", "macOS Ventura (beta)"] {
            assert_eq!(OsVersion::split(text), OsVersion::unknown(text), "{text}");
        }
    }

    #[test]
    fn architectures_have_the_names_that_the_api_uses() {
        for (text, name) in [
            ("X86-64 (Native)", "x86_64"),
            ("X86-64 (Translated)", "x86_64"),
            ("ARM-64 (Native)", "arm64"),
            ("ARM-64", "arm64"),
            ("X86", "x86"),
            ("", "unknown"),
            ("Z80", "unknown"),
        ] {
            assert_eq!(architecture(text), name, "{text}");
        }
    }
}
