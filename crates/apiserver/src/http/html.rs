//! HTML as far as links go: tags are found in a stream of bytes, and the links in them replaced. All else passes as it is.

/// Which attributes of which elements hold a link; upstream's table.
const LINKS: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];
/// Elements whose content is text up to their own end, whatever it looks like.
const RAW: &[&str] = &["iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"];
/// Bytes of a tag; a longer one passes as it is.
const TAG: usize = 16 * 1024;

/// Finds tags, however the page is cut into pieces.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    state: State,
    /// The beginning of something whose end has not come yet.
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// Up to `-->`.
    Comment,
    /// Up to `>`: an end tag, a declaration, an instruction.
    Other,
    /// Up to the end tag of this element.
    Raw(&'static str),
}

/// What can be done with what is held.
enum Step {
    /// This many bytes pass, and then comes this.
    Pass(usize, State),
    /// A tag of this many bytes.
    Tag(usize),
    /// More has to come; this many bytes can pass meanwhile.
    Wait(usize),
}

// === impl Scanner ===

impl Scanner {
    /// Takes a piece and writes what is sure of it. `lead` says what becomes of a link; None leaves it.
    pub(super) fn push(&mut self, piece: &[u8], lead: &dyn Fn(&str) -> Option<String>, out: &mut Vec<u8>) {
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(piece);
        let mut at = 0;
        while at < held.len() {
            let rest = &held[at..];
            match step(self.state, rest) {
                Step::Pass(count, next) => {
                    out.extend_from_slice(&rest[..count]);
                    self.state = next;
                    at += count;
                }
                Step::Tag(count) => {
                    self.state = write_tag(&rest[..count], lead, out);
                    at += count;
                }
                Step::Wait(sure) => {
                    let sure = if rest.len() > TAG { rest.len() } else { sure };
                    out.extend_from_slice(&rest[..sure]);
                    at += sure;
                    break;
                }
            }
        }
        self.held = held.split_off(at);
    }

    /// What was held to the end.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

fn step(state: State, rest: &[u8]) -> Step {
    match state {
        State::Text => match memchr::memchr(b'<', rest) {
            None => Step::Pass(rest.len(), State::Text),
            Some(0) => at_bracket(rest),
            Some(before) => Step::Pass(before, State::Text),
        },
        State::Comment => match memchr::memmem::find(rest, b"-->") {
            Some(at) => Step::Pass(at + 3, State::Text),
            None => Step::Wait(rest.len().saturating_sub(2)),
        },
        State::Other => match memchr::memchr(b'>', rest) {
            Some(at) => Step::Pass(at + 1, State::Text),
            None => Step::Pass(rest.len(), State::Other),
        },
        State::Raw(name) => in_raw(name, rest),
    }
}

/// `rest` begins with `<`.
fn at_bracket(rest: &[u8]) -> Step {
    match rest.get(1) {
        None => Step::Wait(0),
        Some(b'!') if b"<!--".starts_with(&rest[..rest.len().min(4)]) => {
            if rest.len() < 4 {
                Step::Wait(0)
            } else {
                Step::Pass(4, State::Comment)
            }
        }
        Some(b'!' | b'?' | b'/') => Step::Pass(2, State::Other),
        Some(byte) if byte.is_ascii_alphabetic() => match tag_end(rest) {
            Some(end) => Step::Tag(end),
            None => Step::Wait(0),
        },
        Some(_) => Step::Pass(1, State::Text),
    }
}

/// Text of an element like `script`: only its own end tag ends it.
fn in_raw(name: &'static str, rest: &[u8]) -> Step {
    let mut from = 0;
    while let Some(at) = memchr::memchr(b'<', &rest[from..]).map(|at| at + from) {
        let tail = &rest[at..];
        let length = 2 + name.len();
        if tail.len() <= length {
            return Step::Wait(at);
        }
        let ends = tail[1] == b'/' && tail[2..length].eq_ignore_ascii_case(name.as_bytes());
        if ends && matches!(tail[length], b'>' | b'/' | b' ' | b'\t' | b'\n' | b'\r' | b'\x0c') {
            return Step::Pass(at + 2, State::Other);
        }
        from = at + 1;
    }
    Step::Pass(rest.len(), State::Raw(name))
}

/// How long a tag is that begins here; None while its end has not come. A `>` within quotes does not end it.
fn tag_end(tag: &[u8]) -> Option<usize> {
    attributes(tag).1
}

/// An attribute of a tag, as places in it.
#[derive(Debug)]
struct Attribute {
    name: (usize, usize),
    /// With its quotes.
    value: (usize, usize),
    quoted: bool,
}

/// The attributes that have a value, and where the tag ends.
fn attributes(tag: &[u8]) -> (Vec<Attribute>, Option<usize>) {
    let is_space = |b: u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c');
    let run = |from: usize, stop: &dyn Fn(u8) -> bool| {
        tag[from..].iter().position(|b| stop(*b)).map_or(tag.len(), |n| from + n)
    };
    let mut found = Vec::new();
    let mut at = run(1, &|b| is_space(b) || matches!(b, b'/' | b'>'));
    loop {
        at = run(at, &|b| !is_space(b) && b != b'/');
        match tag.get(at) {
            None => return (found, None),
            Some(b'>') => return (found, Some(at + 1)),
            Some(_) => {}
        }
        // A name may begin with "=", which then belongs to it.
        let name = (at, run(at + 1, &|b| is_space(b) || matches!(b, b'/' | b'>' | b'=')));
        let equals = run(name.1, &|b| !is_space(b));
        if tag.get(equals) != Some(&b'=') {
            at = name.1;
            continue;
        }
        let begin = run(equals + 1, &|b| !is_space(b));
        let value = match tag.get(begin) {
            None => return (found, None),
            Some(quote @ (b'"' | b'\'')) => match run(begin + 1, &|b| b == *quote) {
                end if end == tag.len() => return (found, None),
                end => (begin, end + 1),
            },
            Some(_) => (begin, run(begin, &|b| is_space(b) || b == b'>')),
        };
        at = value.1;
        found.push(Attribute { name, value, quoted: matches!(tag[begin], b'"' | b'\'') });
    }
}

/// Writes a tag with its links replaced; says what follows it.
fn write_tag(tag: &[u8], lead: &dyn Fn(&str) -> Option<String>, out: &mut Vec<u8>) -> State {
    let end = tag[1..].iter().position(|b| !b.is_ascii_alphanumeric()).map_or(tag.len(), |n| n + 1);
    let name = String::from_utf8_lossy(&tag[1..end]).to_ascii_lowercase();
    let wanted = LINKS.iter().find(|(element, _)| *element == name).map_or(&[][..], |(_, names)| names);
    let mut written = 0;
    for Attribute { name, value, quoted } in attributes(tag).0 {
        if !wanted.iter().any(|w| w.as_bytes().eq_ignore_ascii_case(&tag[name.0..name.1])) {
            continue;
        }
        let inside = if quoted { &tag[value.0 + 1..value.1 - 1] } else { &tag[value.0..value.1] };
        let led = std::str::from_utf8(inside).ok().and_then(|text| lead(&unescape(text)));
        if let Some(led) = led {
            out.extend_from_slice(&tag[written..value.0]);
            out.extend_from_slice(format!("\"{}\"", escape(&led)).as_bytes());
            written = value.1;
        }
    }
    out.extend_from_slice(&tag[written..]);
    let raw = RAW.iter().find(|element| **element == name);
    raw.map_or(State::Text, |element| State::Raw(element))
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('"', "&#34;").replace('\'', "&#39;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}

/// The characters that links are written with references for. Others stay as they are.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let reference = rest[1..].split_once(';').map(|(name, _)| name).filter(|name| name.len() < 8);
        let meant = reference.and_then(|name| match name {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => {
                let number = name.strip_prefix('#')?;
                let hex = number.strip_prefix(['x', 'X']);
                let code = hex.map_or_else(|| number.parse().ok(), |h| u32::from_str_radix(h, 16).ok())?;
                char::from_u32(code)
            }
        });
        match (meant, reference) {
            (Some(meant), Some(name)) => {
                out.push(meant);
                rest = &rest[name.len() + 2..];
            }
            _ => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lead(link: &str) -> Option<String> {
        link.starts_with('/').then(|| format!("/p{link}"))
    }

    fn change(page: &str, piece: usize) -> String {
        let (mut scanner, mut out) = (Scanner::default(), Vec::new());
        for part in page.as_bytes().chunks(piece) {
            scanner.push(part, &lead, &mut out);
        }
        out.extend(scanner.finish());
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn links_are_replaced_and_nothing_else_wherever_the_page_is_cut() {
        let rows = [
            (r#"<a href="/x">/y</a>"#, r#"<a href="/p/x">/y</a>"#),
            (r"<A HREF='/x' title='/t'>", r#"<A HREF="/p/x" title='/t'>"#),
            ("<img src=/x alt=/y>", r#"<img src="/p/x" alt=/y>"#),
            ("<img  src = '/x'/>", r#"<img  src = "/p/x"/>"#),
            (r#"<a title="a > b" href="/x">"#, r#"<a title="a > b" href="/p/x">"#),
            (r#"<a href="/x?a=1&amp;b=2">"#, r#"<a href="/p/x?a=1&amp;b=2">"#),
            (r#"<a href="&#47;x">"#, r#"<a href="/p/x">"#),
            (r#"<a href="x"><p href="/x">"#, r#"<a href="x"><p href="/x">"#),
            (r#"<!-- <a href="/x"> --><a href="/x">"#, r#"<!-- <a href="/x"> --><a href="/p/x">"#),
            (
                r#"<script src="/s">if (a<b) "<a href='/x'>"</script><q cite="/c">"#,
                r#"<script src="/p/s">if (a<b) "<a href='/x'>"</script><q cite="/p/c">"#,
            ),
            (r#"<!DOCTYPE html><form action="/f">1 < 2"#, r#"<!DOCTYPE html><form action="/p/f">1 < 2"#),
            ("<a href", "<a href"),
            (r#"<a href="/never ends"#, r#"<a href="/never ends"#),
            ("text <", "text <"),
        ];
        for (page, wanted) in rows {
            for piece in [1, 2, 3, 7, 1000] {
                assert_eq!(change(page, piece), wanted, "{page} by {piece}");
            }
        }
    }

    #[test]
    fn a_tag_without_end_costs_a_bounded_room() {
        let (mut scanner, mut out) = (Scanner::default(), Vec::new());
        scanner.push(b"<a title=\"", &lead, &mut out);
        for _ in 0..100 {
            scanner.push(&[b'x'; 4096], &lead, &mut out);
            assert!(scanner.held.len() <= TAG);
        }
        out.extend(scanner.finish());
        assert_eq!(out.len(), 10 + 100 * 4096);
    }
}
