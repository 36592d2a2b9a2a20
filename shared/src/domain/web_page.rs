//! Web pages that servers send in place of files.

/// Returns whether a file begins like a web page. Servers send pages with status 200, too: to log
/// in, or during maintenance.
///
/// Another document type is no web page: a property list, such as a UUID map, has one.
pub(crate) fn is_web_page(file: &[u8]) -> bool {
    let begin = file.strip_prefix("\u{feff}".as_bytes()).unwrap_or(file);
    let begin = begin.trim_ascii_start();
    let begins = |with: &str| {
        let head = begin.get(..with.len());
        head.is_some_and(|head| head.eq_ignore_ascii_case(with.as_bytes()))
    };
    begins("<!doctype html") || begins("<html")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_documents_of_html_are_web_pages() {
        for page in [
            "<!DOCTYPE html>",
            "<!doctype HTML PUBLIC \"-//W3C//DTD HTML 4.01//EN\">",
            "\u{feff}\r\n <Html lang=\"en\">",
        ] {
            assert!(is_web_page(page.as_bytes()), "{page:?}");
        }
        for other in [
            "",
            "<",
            "\u{feff}",
            "<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\">",
            "<?xml version=\"1.0\"?>",
            "MODULE Linux x86_64 0 <html>",
            "\u{7f}ELF",
        ] {
            assert!(!is_web_page(other.as_bytes()), "{other:?}");
        }
    }
}
