//! Files of variables in a Pod's volumes.

use std::collections::BTreeMap;

/// Where an environment file is wrong, counted in lines from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadLine(usize);

/// What a file says, up to where it is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EnvFile {
    /// The first value of each.
    vars: BTreeMap<String, String>,
    wrong: Option<BadLine>,
}

// === impl EnvFile ===

impl EnvFile {
    /// Reads lines `NAME='value'`: values are literal between single quotes and may span lines, `#` begins a comment, and
    /// a space after `=` means an empty value.
    pub(super) fn parse(content: &str) -> Self {
        let mut vars = BTreeMap::new();
        let wrong = read(content, &mut vars).err();
        Self { vars, wrong }
    }

    /// What follows a variable is not looked at for its sake.
    pub(super) fn get(&self, key: &str) -> Result<Option<&str>, BadLine> {
        match (self.vars.get(key), self.wrong) {
            (None, Some(wrong)) => Err(wrong),
            (value, _) => Ok(value.map(String::as_str)),
        }
    }
}

fn read(content: &str, vars: &mut BTreeMap<String, String>) -> Result<(), BadLine> {
    let mut lines = content.lines().enumerate().map(|(i, l)| (i + 1, l));
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or(BadLine(number))?;
        if name.is_empty() || name.ends_with([' ', '\t']) {
            return Err(BadLine(number));
        }
        let mut text = String::new();
        if !value.starts_with([' ', '\t']) {
            let mut rest = value.strip_prefix('\'').ok_or(BadLine(number))?;
            let after = loop {
                if let Some((end, after)) = rest.split_once('\'') {
                    text.push_str(end);
                    break after.trim_start_matches([' ', '\t']);
                }
                text.push_str(rest);
                text.push('\n');
                rest = lines.next().ok_or(BadLine(number))?.1;
            };
            if !after.is_empty() && !after.starts_with('#') {
                return Err(BadLine(number));
            }
        }
        vars.entry(name.to_owned()).or_insert(text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_to_the_first_that_is_wrong() {
        for (content, want) in [
            ("KEY=bare", Err(BadLine(1))),
            ("KEY ='v'", Err(BadLine(1))),
            ("A='x'\nKEY='open", Err(BadLine(2))),
            ("KEY='v' junk", Err(BadLine(1))),
            ("='v'", Err(BadLine(1))),
            ("nonsense", Err(BadLine(1))),
            ("KEY= 'v'", Ok(Some(""))),
            ("KEY='a$b\\n'", Ok(Some("a$b\\n"))),
            ("KEY='first'\nKEY='second'\nnonsense", Ok(Some("first"))),
            ("OTHER='v'", Ok(None)),
        ] {
            assert_eq!(EnvFile::parse(content).get("KEY"), want, "{content:?}");
        }
    }
}
