//! The shape of a Corefile: blocks of servers, and directives that may have blocks of their own.

use super::Error;

/// `zones { directives }`
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) line: usize,
    pub(super) keys: Vec<String>,
    pub(super) directives: Vec<Directive>,
}

/// `name args { body }`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directive {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) args: Vec<String>,
    pub(super) body: Vec<Directive>,
}

#[derive(Debug)]
struct Token {
    line: usize,
    text: String,
    /// A brace in quotes is a text.
    is_quoted: bool,
}

/// Deeper than any plugin goes.
const DEPTH: usize = 4;

pub(super) fn blocks(text: &str) -> Result<Vec<Block>, Error> {
    let tokens = tokens(text)?;
    let mut rest = tokens.as_slice();
    let mut blocks = Vec::new();
    while let Some(first) = rest.first() {
        let open = rest.iter().position(Token::opens);
        let Some(open) = open else {
            return Err(Error::at(first.line, "a server without a block: '{' is missing"));
        };
        let keys = rest[..open].iter().flat_map(|token| token.text.split(','));
        let keys: Vec<String> = keys.filter(|key| !key.is_empty()).map(str::to_owned).collect();
        let line = first.line;
        rest = &rest[open + 1..];
        let directives = directives(&mut rest, line, DEPTH)?;
        blocks.push(Block { line, keys, directives });
    }
    Ok(blocks)
}

/// Up to the brace that closes the block.
fn directives(rest: &mut &[Token], opened: usize, depth: usize) -> Result<Vec<Directive>, Error> {
    if depth == 0 {
        return Err(Error::at(opened, "too many blocks in each other"));
    }
    let mut found = Vec::new();
    loop {
        let Some((token, after)) = rest.split_first() else {
            return Err(Error::at(opened, "the block that begins here has no '}'"));
        };
        *rest = after;
        if token.closes() {
            return Ok(found);
        }
        if token.opens() {
            return Err(Error::at(token.line, "'{' without a name before it"));
        }
        let mut directive =
            Directive { line: token.line, name: token.text.clone(), args: Vec::new(), body: Vec::new() };
        while let Some((token, after)) = rest.split_first() {
            if token.line != directive.line || token.closes() {
                break;
            }
            *rest = after;
            if token.opens() {
                directive.body = directives(rest, token.line, depth - 1)?;
                break;
            }
            directive.args.push(token.text.clone());
        }
        found.push(directive);
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, Error> {
    let mut found = Vec::new();
    let mut chars = text.chars().peekable();
    let mut line = 1;
    while let Some(char) = chars.next() {
        match char {
            '\n' => line += 1,
            '#' => while chars.next_if(|char| *char != '\n').is_some() {},
            '"' => {
                let (began, mut text) = (line, String::new());
                loop {
                    match chars.next() {
                        None => return Err(Error::at(began, "a quote without an end")),
                        Some('"') => break,
                        Some('\\') if chars.peek() == Some(&'"') => text.extend(chars.next()),
                        Some(char) => {
                            line += usize::from(char == '\n');
                            text.push(char);
                        }
                    }
                }
                found.push(Token { line: began, text, is_quoted: true });
            }
            char if char.is_whitespace() => {}
            char => {
                let mut text = String::from(char);
                while let Some(char) = chars.next_if(|char| !char.is_whitespace()) {
                    text.push(char);
                }
                found.push(Token { line, text, is_quoted: false });
            }
        }
    }
    Ok(found)
}

// === impl Token ===

impl Token {
    fn opens(&self) -> bool {
        !self.is_quoted && self.text == "{"
    }

    fn closes(&self) -> bool {
        !self.is_quoted && self.text == "}"
    }
}
