//! Rust text as words and signs, without comments and without what strings say.

#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub text: &'a str,
    pub line: usize,
}

pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let length = length(rest, first);
        let (token, after) = rest.split_at(length.min(rest.len()));
        let is_word = first.is_alphanumeric() || first == '_';
        let is_kept = !first.is_whitespace() && !token.starts_with("//") && !token.starts_with("/*");
        if is_kept && (is_word && !token.contains(['"', '\'']) || !is_word && first != '"' && first != '\'') {
            found.push(Token { text: token, line });
        }
        line += token.matches('\n').count();
        rest = after;
    }
    found
}

/// How many bytes the token at the beginning takes.
fn length(rest: &str, first: char) -> usize {
    let until = |end: &str| rest.find(end).map_or(rest.len(), |at| at + end.len());
    if rest.starts_with("//") {
        return until("\n");
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if let Some(string) = raw_string(rest) {
        return string;
    }
    match first {
        '"' => string(rest, 0),
        '\'' => character(rest),
        'b' if rest.starts_with("b\"") => string(rest, 1),
        'c' if rest.starts_with("c\"") => string(rest, 1),
        'b' if rest.starts_with("b'") => 1 + character(&rest[1..]),
        ':' if rest.starts_with("::") => 2,
        _ if first.is_alphanumeric() || first == '_' => {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        }
        _ => first.len_utf8(),
    }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        let bytes = &rest.as_bytes()[at..];
        if bytes.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// `r"…"`, `r#"…"#` and the byte and C forms.
fn raw_string(rest: &str) -> Option<usize> {
    let after = ["br", "cr", "r"].iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    let hashes = after.bytes().take_while(|b| *b == b'#').count();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let begin = rest.len() - body.len();
    Some(body.find(&end).map_or(rest.len(), |at| begin + at + end.len()))
}

fn string(rest: &str, prefix: usize) -> usize {
    let mut escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(prefix + 1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// A character, or the mark before a lifetime's name.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let from = at + escaped.len_utf8();
            rest[from..].find('\'').map_or(rest.len(), |end| from + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}
