//! The end of a log in the CRI format, as people would read it.

use cri::log::parse_header;

const MAX_LINES: usize = 80;
const MAX_BYTES: usize = 2048;

/// The text of the last 80 lines, of which the last 2048 bytes. `whole` says that `log` begins at
/// the beginning of a line.
pub(super) fn log_text(log: &[u8], whole: bool) -> String {
    let text = String::from_utf8_lossy(log);
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    if !whole && lines.len() > 1 {
        lines.remove(0);
    }
    let first = lines.len().saturating_sub(MAX_LINES);
    let mut out = String::new();
    for line in &lines[first..] {
        match parse_header(line.as_bytes()) {
            Some(header) => {
                out.push_str(line[header.len..].trim_end_matches('\n'));
                if header.full {
                    out.push('\n');
                }
            }
            // Not a log line: a runtime that writes something else, or a line cut by the window.
            None => out.push_str(line),
        }
    }
    last_bytes(&out, MAX_BYTES).to_owned()
}

/// At most `max` bytes from the end, whole characters only.
pub(super) fn last_bytes(text: &str, max: usize) -> &str {
    let mut start = text.len().saturating_sub(max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lose_their_stamps_and_partial_ones_join() {
        let log = b"2026-01-01T00:00:00.1Z stdout F one\n2026-01-01T00:00:00.2Z stderr P tw\n\
            2026-01-01T00:00:00.3Z stderr F o\n2026-01-01T00:00:00.4Z stdout F \nplain\n";
        assert_eq!(log_text(log, true), "one\ntwo\n\nplain\n");
    }

    #[test]
    fn only_the_end_is_kept() {
        let log: String = (0..100).map(|i| format!("2026-01-01T00:00:00Z stdout F line {i}\n")).collect();
        let text = log_text(log.as_bytes(), true);
        assert!(text.starts_with("line 20\n") && text.ends_with("line 99\n"), "{text}");
        let long: String =
            (0..100).map(|_| format!("2026-01-01T00:00:00Z stdout F {}\n", "é".repeat(100))).collect();
        let text = log_text(long.as_bytes(), true);
        assert!(text.len() <= 2048 && text.len() > 2040);
        let cut = b"-01T00:00:00Z stdout F lost\n2026-01-01T00:00:00Z stdout F kept\n";
        assert_eq!(log_text(cut, false), "kept\n");
        assert_eq!(log_text(b"one endless li", false), "one endless li");
    }
}
