//! Command-line flags as Kubernetes components take them: one table, read the way pflag reads.
//!
//! A table row says everything about a flag; the same rows parse the command line, print the help,
//! feed shell completion and the documentation. Values come out as JSON, so that a flag can be laid
//! over a configuration document at the path of the field it names.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;

use serde_json::{Map, Value};

use crate::duration::GoDuration;
use crate::nearest::nearest;
use crate::quantity::Quantity;

/// What a flag's text means, and what JSON it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagType {
    Bool,
    Int32,
    Int64,
    Uint32,
    Float,
    Text,
    Duration,
    Quantity,
    Ip,
    /// `a,b`, repeatable: an array.
    List,
    /// `k=v,…`, repeatable: an object.
    Map,
    /// `k=v`, one pair per occurrence, so that values may hold commas.
    MapUnsplit,
    /// `k=v,…` or bare `k,…`: a bare key has the empty value.
    Labels,
    /// `k<v,…`: eviction thresholds.
    Thresholds,
    /// `k=true,…`: feature gates.
    BoolMap,
    /// `k:v,…`: an object of arrays, for HTTP headers.
    Headers,
    /// Read by the owner of the table: an array of the raw texts, with this word in the help.
    Raw(&'static str),
}

/// One flag. `default` is what help shows; it is documentation, not a value.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    pub kind: FlagType,
    pub default: &'static str,
    pub deprecated: Option<&'static str>,
    pub help: &'static str,
}

/// What a command line said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    /// Value by flag name, only for flags that were given.
    pub values: BTreeMap<&'static str, Value>,
    /// One sentence per deprecated flag that was given, in order of first use.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    #[error("unknown flag: {0}")]
    Unknown(String),
    #[error("unexpected argument {0:?}")]
    Positional(String),
    #[error("flag needs an argument: --{0}")]
    MissingValue(&'static str),
    #[error("invalid argument {text:?} for \"--{flag}\" flag: {reason}")]
    Invalid { flag: &'static str, text: String, reason: String },
    #[error("argument {0:?} is not valid UTF-8")]
    NotUtf8(String),
}

/// Reads a whole command line and reports every mistake in it.
pub fn parse(table: &[Flag], args: impl IntoIterator<Item = OsString>) -> Result<Parsed, Vec<FlagError>> {
    let mut reader = Reader { table, parsed: Parsed::default(), errors: Vec::new() };
    reader.read(lexopt::Parser::from_args(args));
    if reader.errors.is_empty() { Ok(reader.parsed) } else { Err(reader.errors) }
}

/// The flag of that name; underscores count as dashes.
pub fn find<'t>(table: &'t [Flag], name: &str) -> Option<&'t Flag> {
    let name = name.replace('_', "-");
    table.iter().find(|f| f.name == name)
}

/// The help text: one entry per flag in order of name, wrapped to `width` columns.
pub fn render_help(table: &[Flag], width: usize) -> String {
    let mut rows: Vec<&Flag> = table.iter().collect();
    rows.sort_by_key(|f| f.name);
    let mut out = String::new();
    for flag in rows {
        out.push_str(&flag.usage());
        out.push('\n');
        wrap(&mut out, &flag.sentence(), width.max(40));
    }
    out
}

// === impl Flag ===

impl Flag {
    pub const fn new(name: &'static str, kind: FlagType, default: &'static str, help: &'static str) -> Self {
        Self { name, short: None, kind, default, deprecated: None, help }
    }

    pub const fn deprecated(mut self, why: &'static str) -> Self {
        self.deprecated = Some(why);
        self
    }

    pub const fn short(mut self, short: char) -> Self {
        self.short = Some(short);
        self
    }

    fn usage(&self) -> String {
        let short = match self.short {
            Some(c) => format!("  -{c}, --{}", self.name),
            None => format!("      --{}", self.name),
        };
        match self.kind.word() {
            "" => short,
            word => format!("{short} {word}"),
        }
    }

    fn sentence(&self) -> String {
        let mut text = self.help.to_owned();
        let silent = matches!(self.default, "" | "false");
        if !silent {
            let quoted = matches!(self.kind, FlagType::Text);
            let (open, close) = if quoted { ("\"", "\"") } else { ("", "") };
            text.push_str(&format!(" (default {open}{}{close})", self.default));
        }
        if let Some(why) = self.deprecated {
            text.push_str(&format!(" (DEPRECATED: {why})"));
        }
        text
    }
}

// === impl FlagType ===

impl FlagType {
    /// The word help shows for the value.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Bool => "",
            Self::Int32 | Self::Int64 => "int",
            Self::Uint32 => "uint",
            Self::Float => "float",
            Self::Text => "string",
            Self::Duration => "duration",
            Self::Quantity => "quantity",
            Self::Ip => "ip",
            Self::List => "strings",
            Self::Map | Self::MapUnsplit | Self::Labels | Self::Thresholds => "mapStringString",
            Self::BoolMap => "mapStringBool",
            Self::Headers => "headers",
            Self::Raw(word) => word,
        }
    }

    /// Reads one occurrence; `before` is what earlier occurrences left.
    fn read(self, text: &str, before: Option<Value>) -> Result<Value, String> {
        match self {
            Self::Bool => read_bool(text).map(Value::Bool),
            Self::Int32 => read_int(text, i32::MIN.into(), i32::MAX.into()).map(Value::from),
            Self::Int64 => read_int(text, i64::MIN, i64::MAX).map(Value::from),
            Self::Uint32 => read_int(text, 0, u32::MAX.into()).map(Value::from),
            Self::Float => match text.parse::<f64>() {
                Ok(f) if f.is_finite() => Ok(Value::from(f)),
                _ => Err("not a number".into()),
            },
            Self::Text => Ok(Value::from(text)),
            Self::Duration => read_as::<GoDuration>(text),
            Self::Quantity => read_as::<Quantity>(text),
            Self::Ip => match text.trim().parse::<IpAddr>() {
                Ok(_) => Ok(Value::from(text.trim())),
                Err(_) => Err("not a valid IP address".into()),
            },
            Self::List => Ok(appended(before, split_list(text)?)),
            Self::Raw(_) => Ok(appended(before, [Value::from(text)])),
            Self::Map
            | Self::MapUnsplit
            | Self::Labels
            | Self::Thresholds
            | Self::BoolMap
            | Self::Headers => self.read_pairs(text, before),
        }
    }

    fn read_pairs(self, text: &str, before: Option<Value>) -> Result<Value, String> {
        let mut map = match before {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        };
        let separator = match self {
            Self::Thresholds => '<',
            Self::Headers => ':',
            _ => '=',
        };
        let pairs: Vec<&str> = match self {
            Self::MapUnsplit => vec![text],
            _ => text.split(',').filter(|p| !p.is_empty()).collect(),
        };
        for pair in pairs {
            let (key, value) = match pair.split_once(separator) {
                Some((key, value)) => (key.trim(), value.trim()),
                None if self == Self::Labels => (pair.trim(), ""),
                None => return Err(format!("malformed pair {pair:?}, expected key{separator}value")),
            };
            match self {
                Self::BoolMap => {
                    let value = read_bool(value).map_err(|e| format!("{key}: {e}"))?;
                    map.insert(key.to_owned(), Value::Bool(value));
                }
                Self::Headers => {
                    let slot = map.remove(key);
                    map.insert(key.to_owned(), appended(slot, [Value::from(value)]));
                }
                _ => {
                    map.insert(key.to_owned(), Value::from(value));
                }
            }
        }
        Ok(Value::Object(map))
    }
}

fn read_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("not true or false".into()),
    }
}

/// Integers may carry a base prefix and underscores between digits, as in Go source.
fn read_int(text: &str, min: i64, max: i64) -> Result<i64, String> {
    let (negative, body) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = body.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if digits.starts_with(['+', '-']) {
        return Err("not an integer".into());
    }
    let digits = digits.replace('_', "");
    let magnitude = i128::from_str_radix(&digits, radix).map_err(|_| "not an integer")?;
    let value = if negative { -magnitude } else { magnitude };
    match i64::try_from(value) {
        Ok(v) if (min..=max).contains(&v) => Ok(v),
        _ => Err(format!("out of range, must be between {min} and {max}")),
    }
}

fn read_as<T>(text: &str) -> Result<Value, String>
where
    T: std::str::FromStr<Err: ToString> + ToString,
{
    match text.parse::<T>() {
        Ok(v) => Ok(Value::from(v.to_string())),
        Err(e) => Err(e.to_string()),
    }
}

fn appended(before: Option<Value>, more: impl IntoIterator<Item = Value>) -> Value {
    let mut items = match before {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    items.extend(more);
    Value::Array(items)
}

/// Splits one CSV record: commas separate, double quotes keep a comma in the item.
fn split_list(text: &str) -> Result<Vec<Value>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut items = Vec::new();
    let mut rest = text;
    loop {
        let (item, tail) = match rest.strip_prefix('"') {
            Some(quoted) => take_quoted(quoted)?,
            None => match rest.find(',') {
                Some(i) => (rest[..i].to_owned(), &rest[i..]),
                None => (rest.to_owned(), ""),
            },
        };
        items.push(Value::from(item));
        match tail.strip_prefix(',') {
            Some(after) => rest = after,
            None if tail.is_empty() => return Ok(items),
            None => return Err("text after a closing quote".into()),
        }
    }
}

fn take_quoted(quoted: &str) -> Result<(String, &str), String> {
    let mut item = String::new();
    let mut rest = quoted;
    loop {
        let Some(end) = rest.find('"') else {
            return Err("unclosed quote".into());
        };
        item.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                item.push('"');
                rest = after;
            }
            None => return Ok((item, rest)),
        }
    }
}

// --- the command line ---

struct Reader<'t> {
    table: &'t [Flag],
    parsed: Parsed,
    errors: Vec<FlagError>,
}

impl<'t> Reader<'t> {
    fn read(&mut self, mut parser: lexopt::Parser) {
        let mut may_be_value = false;
        loop {
            let follows_unknown = std::mem::take(&mut may_be_value);
            if self.read_single_dash(&mut parser) {
                continue;
            }
            let arg = match parser.next() {
                Ok(Some(arg)) => arg,
                Ok(None) => return,
                Err(e) => {
                    self.errors.push(FlagError::Positional(e.to_string()));
                    continue;
                }
            };
            let flag = match arg {
                lexopt::Arg::Long(name) => match find(self.table, name) {
                    Some(flag) => flag,
                    None => {
                        self.errors.push(FlagError::Unknown(unknown(self.table, name)));
                        // An attached value belongs to the unknown flag; so may the next word.
                        may_be_value = parser.optional_value().is_none();
                        continue;
                    }
                },
                lexopt::Arg::Short(c) => match self.table.iter().find(|f| f.short == Some(c)) {
                    Some(flag) => flag,
                    None => {
                        self.errors.push(FlagError::Unknown(format!("-{c}")));
                        let _ = parser.optional_value();
                        continue;
                    }
                },
                lexopt::Arg::Value(_) if follows_unknown => continue,
                lexopt::Arg::Value(text) => {
                    let text = text.to_string_lossy().into_owned();
                    self.errors.push(FlagError::Positional(text));
                    continue;
                }
            };
            // A boolean never takes the next argument: `--b false` is `--b` and a stray word.
            let value = match flag.kind {
                FlagType::Bool => Some(parser.optional_value().unwrap_or_else(|| "true".into())),
                _ => parser.value().ok(),
            };
            self.record(flag, value);
        }
    }

    /// Takes `-name` or `-name=value` where `name` is a long flag: Go's own flag package, and so
    /// many unit files, spell them so.
    fn read_single_dash(&mut self, parser: &mut lexopt::Parser) -> bool {
        let Some(mut raw) = parser.try_raw_args() else {
            return false;
        };
        let Some(body) = raw
            .peek()
            .and_then(|a| a.to_str())
            .and_then(|a| a.strip_prefix('-'))
            .filter(|b| !b.starts_with('-'))
        else {
            return false;
        };
        let (name, attached) = match body.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (body, None),
        };
        let Some(flag) = find(self.table, name).filter(|f| f.name.len() > 1) else {
            return false;
        };
        raw.next();
        let value = match (attached, flag.kind) {
            (Some(value), _) => Some(value),
            (None, FlagType::Bool) => Some("true".into()),
            (None, _) => raw.next(),
        };
        self.record(flag, value);
        true
    }

    fn record(&mut self, flag: &'t Flag, value: Option<OsString>) {
        let Some(value) = value else {
            self.errors.push(FlagError::MissingValue(flag.name));
            return;
        };
        let text = match value.into_string() {
            Ok(text) => text,
            Err(raw) => {
                let lossy = raw.to_string_lossy().into_owned();
                self.errors.push(FlagError::NotUtf8(lossy));
                return;
            }
        };
        let before = self.parsed.values.remove(flag.name);
        if before.is_none()
            && let Some(why) = flag.deprecated
        {
            self.parsed.warnings.push(format!("Flag --{} has been deprecated, {why}", flag.name));
        }
        match flag.kind.read(&text, before) {
            Ok(value) => {
                self.parsed.values.insert(flag.name, value);
            }
            Err(reason) => self.errors.push(FlagError::Invalid { flag: flag.name, text, reason }),
        }
    }
}

/// A flag that nobody knows, and the one that may have been meant.
fn unknown(table: &[Flag], name: &str) -> String {
    match nearest(name, table.iter().map(|flag| flag.name)) {
        Some(meant) => format!("--{name}; did you mean --{meant}?"),
        None => format!("--{name}"),
    }
}

fn wrap(out: &mut String, text: &str, width: usize) {
    const INDENT: &str = "          ";
    let mut line = String::from(INDENT);
    for word in text.split_whitespace() {
        if line.len() > INDENT.len() && line.len() + 1 + word.len() > width {
            out.push_str(&line);
            out.push('\n');
            line.truncate(0);
            line.push_str(INDENT);
        }
        if line.len() > INDENT.len() {
            line.push(' ');
        }
        line.push_str(word);
    }
    out.push_str(&line);
    out.push('\n');
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const TABLE: &[Flag] = &[
        Flag::new("address", FlagType::Ip, "0.0.0.0", "Where to listen."),
        Flag::new("config", FlagType::Text, "", "The file."),
        Flag::new("dns", FlagType::List, "", "Servers."),
        Flag::new("dry-run", FlagType::Bool, "false", "Do nothing."),
        Flag::new("gates", FlagType::BoolMap, "", "Gates."),
        Flag::new("hard", FlagType::Thresholds, "", "Thresholds."),
        Flag::new("header", FlagType::Headers, "", "Headers."),
        Flag::new("labels", FlagType::Labels, "", "Labels."),
        Flag::new("max", FlagType::Int32, "7", "A number.").deprecated("use the file."),
        Flag::new("opts", FlagType::MapUnsplit, "", "Options."),
        Flag::new("reserve", FlagType::Map, "", "Reservations."),
        Flag::new("size", FlagType::Quantity, "", "A size."),
        Flag::new("taint", FlagType::Raw("taints"), "", "Taints."),
        Flag::new("timeout", FlagType::Duration, "1m0s", "A while."),
        Flag::new("v", FlagType::Uint32, "0", "Verbosity.").short('v'),
    ];

    fn read(args: &[&str]) -> Result<Parsed, Vec<FlagError>> {
        parse(TABLE, args.iter().map(OsString::from))
    }

    fn one(args: &[&str]) -> (String, Value) {
        let parsed = read(args).unwrap_or_else(|e| panic!("{args:?}: {e:?}"));
        let (name, value) = parsed.values.into_iter().next().unwrap();
        (name.to_owned(), value)
    }

    #[test]
    fn every_spelling_reads() {
        let rows: &[(&[&str], &str, Value)] = &[
            (&["--config=a"], "config", json!("a")),
            (&["--config", "a"], "config", json!("a")),
            (&["-config", "a"], "config", json!("a")),
            (&["-config=a=b"], "config", json!("a=b")),
            (&["--config="], "config", json!("")),
            (&["--config", "--dry-run"], "config", json!("--dry-run")),
            (&["--config", "a", "--config", "b"], "config", json!("b")),
            (&["--dry-run"], "dry-run", json!(true)),
            (&["-dry-run"], "dry-run", json!(true)),
            (&["--dry_run=false"], "dry-run", json!(false)),
            (&["-dry_run=0"], "dry-run", json!(false)),
            (&["--dns=1.1.1.1,2.2.2.2", "--dns", "3.3.3.3"], "dns", json!(["1.1.1.1", "2.2.2.2", "3.3.3.3"])),
            (&["--dns="], "dns", json!([])),
            (&["--dns=\"a,b\",c\"\"d,\"e\"\"\""], "dns", json!(["a,b", "c\"\"d", "e\""])),
            (&["--gates=A=true,B=F", "--gates", "A=false"], "gates", json!({"A": false, "B": false})),
            (
                &["--hard=memory.available<100Mi,nodefs.available<10%"],
                "hard",
                json!({"memory.available": "100Mi", "nodefs.available": "10%"}),
            ),
            (&["--header=a:x,b:y", "--header=a:z:q"], "header", json!({"a": ["x", "z:q"], "b": ["y"]})),
            (&["--labels=a=b,c, d=e "], "labels", json!({"a": "b", "c": "", "d": "e"})),
            (&["--opts=a=1,2", "--opts=b=3"], "opts", json!({"a": "1,2", "b": "3"})),
            (&["--reserve=cpu=1,memory=1Gi"], "reserve", json!({"cpu": "1", "memory": "1Gi"})),
            (&["--size=1024Mi"], "size", json!("1Gi")),
            (&["--taint=a=b:NoSchedule", "--taint", "c"], "taint", json!(["a=b:NoSchedule", "c"])),
            (&["--timeout=90s"], "timeout", json!("1m30s")),
            (&["-v=4"], "v", json!(4)),
            (&["-v4"], "v", json!(4)),
            (&["-v", "4"], "v", json!(4)),
            (&["--v", "0x10"], "v", json!(16)),
            (&["--max=-3"], "max", json!(-3)),
            (&["--address=::"], "address", json!("::")),
        ];
        for (args, name, want) in rows {
            assert_eq!(one(args), ((*name).to_owned(), want.clone()), "{args:?}");
        }
    }

    #[test]
    fn every_mistake_is_reported() {
        let errors = read(&[
            "--nope=1",
            "-x",
            "--dry-run",
            "false",
            "--max=ten",
            "--max=3000000000",
            "--timeout=5",
            "--gates=A",
            "--gates=A=maybe",
            "--address=nowhere",
            "--size=1kk",
            "stray",
            "--config",
        ])
        .unwrap_err();
        let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let want = [
            "unknown flag: --nope",
            "unknown flag: -x",
            "unexpected argument \"false\"",
            "invalid argument \"ten\" for \"--max\" flag: not an integer",
            "invalid argument \"3000000000\" for \"--max\" flag: out of range",
            "invalid argument \"5\" for \"--timeout\" flag: missing unit in duration \"5\"",
            "invalid argument \"A\" for \"--gates\" flag: malformed pair \"A\"",
            "invalid argument \"A=maybe\" for \"--gates\" flag: A: not true or false",
            "invalid argument \"nowhere\" for \"--address\" flag: not a valid IP address",
            "invalid argument \"1kk\" for \"--size\" flag: quantity \"1kk\" has the unknown suffix",
            "unexpected argument \"stray\"",
            "flag needs an argument: --config",
        ];
        assert_eq!(text.len(), want.len(), "{text:#?}");
        for (got, want) in text.iter().zip(want) {
            assert!(got.starts_with(want), "{got:?} does not start with {want:?}");
        }
    }

    #[test]
    fn everything_after_two_dashes_is_positional() {
        let errors = read(&["--", "--config=a"]).unwrap_err();
        assert_eq!(errors, [FlagError::Positional("--config=a".into())]);
    }

    #[test]
    fn a_deprecated_flag_warns_once() {
        let parsed = read(&["--max=1", "--max=2"]).unwrap();
        assert_eq!(parsed.warnings, ["Flag --max has been deprecated, use the file."]);
        assert!(read(&["--config=a"]).unwrap().warnings.is_empty());
    }

    #[test]
    fn help_names_every_flag_and_wraps() {
        let help = render_help(TABLE, 60);
        for flag in TABLE {
            assert!(help.contains(&format!("--{}", flag.name)), "{}", flag.name);
        }
        assert!(help.contains("  -v, --v uint\n"), "{help}");
        assert!(help.contains("      --dry-run\n          Do nothing.\n"), "{help}");
        assert!(help.contains("A while. (default 1m0s)"), "{help}");
        assert!(help.contains("(default 7) (DEPRECATED: use the file.)"), "{help}");
        assert!(help.lines().all(|l| l.len() <= 60), "{help}");
    }

    proptest! {
        #[test]
        fn no_command_line_panics(args in prop::collection::vec("(-{0,3}[a-z_=,:<\"]{0,6}|--(dns|gates|header|v|max|size|labels)=.{0,8}|.{0,6})", 0..6)) {
            let _ = parse(TABLE, args.into_iter().map(OsString::from));
        }

        #[test]
        fn integers_agree_with_their_text(n in any::<i32>()) {
            let arg = format!("--max={n}");
            prop_assert_eq!(one(&[&arg]).1, json!(n));
        }
    }
}
