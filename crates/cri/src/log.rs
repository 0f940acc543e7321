//! The CRI log format, turned back into what the container wrote.
//!
//! A raw line is `<RFC 3339 time> <stream> <tags> <text>`; the first tag is `P` for a piece of a longer line
//! and `F` for the end of one. Lines may be of any length, so nothing here ever holds a whole one.

use base::time::Wall;

/// A header longer than this is no header.
const HEADER_LIMIT: usize = 256;

/// What of the log is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Only lines at or after this time.
    pub since: Option<Wall>,
    /// Put the time before each line.
    pub timestamps: bool,
    /// Only what was written here.
    pub stream: Option<Output>,
}

/// Where a container writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Stdout,
    Stderr,
}

/// Turns raw bytes into text, however they are cut into chunks.
#[derive(Clone, Debug)]
pub struct Decoder {
    wanted: Wanted,
    state: State,
    /// The beginning of a header whose end has not arrived yet.
    pending: Vec<u8>,
    /// The text so far ends in the middle of a line.
    open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Header,
    Text { shown: bool, full: bool },
}

/// The fixed part of a raw line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    pub time: &'a str,
    pub stream: &'a str,
    /// The last piece of its line.
    pub full: bool,
    /// Bytes up to the text.
    pub len: usize,
}

// === impl Wanted ===

impl Wanted {
    fn is_from(&self, stream: &str) -> bool {
        match self.stream {
            None => true,
            Some(Output::Stdout) => stream == "stdout",
            Some(Output::Stderr) => stream == "stderr",
        }
    }
}

// === impl Decoder ===

impl Decoder {
    #[must_use]
    pub fn new(wanted: Wanted) -> Self {
        Self { wanted, state: State::Header, pending: Vec::new(), open: false }
    }

    /// Takes the next bytes of the file and appends the text they hold.
    pub fn decode(&mut self, mut raw: &[u8], out: &mut Vec<u8>) {
        while !raw.is_empty() {
            raw = match self.state {
                State::Header => self.feed_header(raw, out),
                State::Text { shown, full } => self.feed_text(raw, shown, full, out),
            };
        }
    }

    /// The file ends here, or another one follows: an unfinished raw line stays unfinished.
    pub fn end_of_file(&mut self) {
        self.pending.clear();
        self.state = State::Header;
    }

    fn feed_header<'a>(&mut self, raw: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
        let before = self.pending.len();
        let take = raw.len().min(HEADER_LIMIT - before);
        self.pending.extend_from_slice(&raw[..take]);
        let line = self.pending.split(|b| *b == b'\n').next().unwrap_or_default();
        let complete = line.len() < self.pending.len();
        let rest = match parse_header(line) {
            // A text may be empty, but its header must be whole before it is judged.
            Some(header) => {
                let late = |since| parse_time(header.time).is_none_or(|t| t >= since);
                let shown = self.wanted.since.is_none_or(late) && self.wanted.is_from(header.stream);
                if shown && self.wanted.timestamps && !self.open {
                    push_time(header.time, out);
                }
                self.state = State::Text { shown, full: header.full };
                self.open |= shown;
                header.len
            }
            None if complete || self.pending.len() == HEADER_LIMIT => {
                // Not in this format: the line is passed over.
                self.state = State::Text { shown: false, full: false };
                line.len()
            }
            None => return &[],
        };
        self.pending.clear();
        &raw[rest.saturating_sub(before)..]
    }

    fn feed_text<'a>(&mut self, raw: &'a [u8], shown: bool, full: bool, out: &mut Vec<u8>) -> &'a [u8] {
        let end = raw.iter().position(|b| *b == b'\n');
        if shown {
            out.extend_from_slice(&raw[..end.unwrap_or(raw.len())]);
        }
        let Some(end) = end else { return &[] };
        if shown && full {
            out.push(b'\n');
            self.open = false;
        }
        self.state = State::Header;
        &raw[end + 1..]
    }
}

/// Reads the header at the beginning of a raw line; `None` when it is not there, or not whole.
#[must_use]
pub fn parse_header(line: &[u8]) -> Option<Header<'_>> {
    let mut fields = line.splitn(4, |b| *b == b' ');
    let (time, stream, tags) = (fields.next()?, fields.next()?, fields.next()?);
    fields.next()?;
    let len = time.len() + stream.len() + tags.len() + 3;
    let (time, stream) = (std::str::from_utf8(time).ok()?, std::str::from_utf8(stream).ok()?);
    let known = matches!(stream, "stdout" | "stderr") && time.contains('T');
    let full = tags.split(|b| *b == b':').next() != Some(b"P");
    known.then_some(Header { time, stream, full, len })
}

/// An RFC 3339 time; `None` if it is something else.
#[must_use]
pub fn parse_time(text: &str) -> Option<Wall> {
    let time: jiff::Timestamp = text.parse().ok()?;
    i64::try_from(time.as_nanosecond()).ok().map(Wall)
}

/// The time with all nine digits of its fraction, so that columns line up, and a space.
fn push_time(time: &str, out: &mut Vec<u8>) {
    let clock = time.find('T').unwrap_or(0);
    let zone = time[clock..].find(['Z', '+', '-']).map_or(time.len(), |i| clock + i);
    let (whole, fraction) = time[..zone].split_once('.').unwrap_or((&time[..zone], ""));
    out.extend_from_slice(format!("{whole}.{fraction:0<9}{} ", &time[zone..]).as_bytes());
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(wanted: Wanted, raw: &str) -> String {
        let mut out = Vec::new();
        Decoder::new(wanted).decode(raw.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    const RAW: &str = "2026-01-01T00:00:00.5Z stdout F one\n2026-01-01T00:00:01Z stderr P two, \n\
                       not a log line\n2026-01-01T00:00:02+00:00 stderr F:x rest\n2026-01-01T00:00:03Z stdout F \n";

    #[test]
    fn pieces_are_joined_and_strangers_passed_over() {
        assert_eq!(decode(Wanted::default(), RAW), "one\ntwo, rest\n\n");
    }

    #[test]
    fn times_are_padded_and_stand_before_whole_lines_only() {
        let wanted = Wanted { timestamps: true, ..Wanted::default() };
        let expected = "2026-01-01T00:00:00.500000000Z one\n2026-01-01T00:00:01.000000000Z two, rest\n\
                        2026-01-01T00:00:03.000000000Z \n";
        assert_eq!(decode(wanted, RAW), expected);
    }

    #[test]
    fn since_is_inclusive() {
        let wanted = Wanted { since: parse_time("2026-01-01T00:00:02Z"), ..Wanted::default() };
        assert_eq!(decode(wanted, RAW), "rest\n\n");
    }

    #[test]
    fn one_stream_can_be_singled_out() {
        let of = |stream| decode(Wanted { stream: Some(stream), ..Wanted::default() }, RAW);
        assert_eq!((of(Output::Stdout).as_str(), of(Output::Stderr).as_str()), ("one\n\n", "two, rest\n"));
    }

    #[test]
    fn an_unfinished_line_shows_what_there_is() {
        assert_eq!(decode(Wanted::default(), "2026-01-01T00:00:00Z stdout F ha"), "ha");
        assert_eq!(decode(Wanted::default(), "2026-01-01T00:00:00Z stdo"), "");
        assert_eq!(decode(Wanted::default(), &"x".repeat(10_000)), "");
    }

    proptest! {
        #[test]
        fn chunking_never_matters(
            lines in prop::collection::vec(("[a-z ]{0,40}", any::<bool>()), 0..20),
            cuts in prop::collection::vec(1usize..30, 0..200),
            timestamps: bool,
        ) {
            let raw: String = lines
                .iter()
                .map(|(text, full)| format!("2026-01-01T00:00:00.1Z stdout {} {text}\n", if *full { 'F' } else { 'P' }))
                .collect();
            let wanted = Wanted { timestamps, ..Wanted::default() };
            let mut decoder = Decoder::new(wanted);
            let (mut out, mut rest) = (Vec::new(), raw.as_bytes());
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                decoder.decode(now, &mut out);
                rest = later;
            }
            decoder.decode(rest, &mut out);
            prop_assert_eq!(String::from_utf8(out).unwrap(), decode(wanted, &raw));
        }

        #[test]
        fn any_bytes_are_survived(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..8)) {
            let mut decoder = Decoder::new(Wanted { timestamps: true, since: Some(Wall(0)), stream: None });
            let mut out = Vec::new();
            for chunk in &chunks {
                decoder.decode(chunk, &mut out);
            }
            let fed: usize = chunks.iter().map(Vec::len).sum();
            prop_assert!(out.len() <= 2 * fed);
        }
    }
}
