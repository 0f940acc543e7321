//! Label and field selectors: the text form of query parameters and the object form of `matchLabels`.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::Value;

use crate::names;

/// What labels must satisfy: every requirement at once. No requirement takes everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Exists,
    DoesNotExist,
    Equals,
    NotEquals,
    In,
    NotIn,
    GreaterThan,
    LessThan,
}

/// What fields must satisfy. No term takes everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    pub field: String,
    pub negated: bool,
    pub value: String,
}

/// A text that is no selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(String);

/// Requirements beyond this in one selector are refused.
const MOST_TERMS: usize = 1024;

// === impl LabelSelector ===

impl LabelSelector {
    /// Reads `app=web,tier in (a, b),!legacy`.
    pub fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
        let mut reader = Reader { tokens: tokens(text)?, at: 0 };
        let mut requirements = Vec::new();
        if reader.peek() == &Token::End {
            return Ok(LabelSelector { requirements });
        }
        loop {
            requirements.push(reader.requirement()?);
            if requirements.len() > MOST_TERMS {
                return Err(SelectorError(format!("more than {MOST_TERMS} requirements")));
            }
            match reader.next() {
                Token::End => return Ok(LabelSelector { requirements }),
                Token::Comma if matches!(reader.peek(), Token::Word(_) | Token::Not) => {}
                Token::Comma => {
                    let found = reader.peek().clone();
                    return Err(unexpected(&found, "identifier after ','"));
                }
                other => return Err(unexpected(&other, "',' or 'end of string'")),
            }
        }
    }

    /// Reads the object form: `{"matchLabels": …, "matchExpressions": …}`. Nothing at all takes everything; what is
    /// malformed takes nothing, since validation has already refused it.
    #[must_use]
    pub fn from_object(selector: &Value) -> LabelSelector {
        let mut requirements = Vec::new();
        for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
            requirements.push(Requirement {
                key: key.clone(),
                operator: Operator::Equals,
                values: vec![value.as_str().unwrap_or_default().to_owned()],
            });
        }
        for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
            let values = expression["values"].as_array().into_iter().flatten();
            let operator = match expression["operator"].as_str() {
                Some("Exists") => Operator::Exists,
                Some("DoesNotExist") => Operator::DoesNotExist,
                Some("NotIn") => Operator::NotIn,
                _ => Operator::In,
            };
            requirements.push(Requirement {
                key: expression["key"].as_str().unwrap_or_default().to_owned(),
                operator,
                values: values.filter_map(|v| v.as_str().map(str::to_owned)).collect(),
            });
        }
        LabelSelector { requirements }
    }

    /// The same of a typed object.
    #[must_use]
    pub fn from_api(selector: &meta::LabelSelector) -> LabelSelector {
        LabelSelector::from_object(&serde_json::to_value(selector).unwrap_or_default())
    }

    /// These labels, each with its value: the selector of a Service or a ReplicationController.
    #[must_use]
    pub fn from_labels<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> LabelSelector {
        let equal = |(key, value): (&String, &String)| Requirement {
            key: key.clone(),
            operator: Operator::Equals,
            values: vec![value.clone()],
        };
        LabelSelector { requirements: labels.into_iter().map(equal).collect() }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether a label lookup satisfies every requirement.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|r| r.holds(label(&r.key)))
    }

    /// Whether `metadata.labels` of an object satisfies it.
    #[must_use]
    pub fn matches_object(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.matches(|key| labels.get(key).and_then(Value::as_str))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms: Vec<String> = self.requirements.iter().map(ToString::to_string).collect();
        f.write_str(&terms.join(","))
    }
}

// === impl Requirement ===

impl Requirement {
    /// Whether a label, or its absence, satisfies it.
    #[must_use]
    pub fn holds(&self, label: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|v| v == value);
        let number = |text: &str| text.parse::<i64>().ok();
        let bound = || self.values.first().and_then(|v| number(v));
        match self.operator {
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::Equals | Operator::In => label.is_some_and(listed),
            Operator::NotEquals | Operator::NotIn => !label.is_some_and(listed),
            Operator::GreaterThan => label.and_then(number).zip(bound()).is_some_and(|(l, b)| l > b),
            Operator::LessThan => label.and_then(number).zip(bound()).is_some_and(|(l, b)| l < b),
        }
    }

    fn check(&self) -> Result<(), SelectorError> {
        let check = |what: &str, text: &str, messages: Vec<String>| match messages.first() {
            Some(why) => Err(SelectorError(format!("{what}: Invalid value: {text:?}: {why}"))),
            None => Ok(()),
        };
        check("key", &self.key, names::qualified_name(&self.key))?;
        match self.operator {
            Operator::GreaterThan | Operator::LessThan => {
                let value = self.values.first().map(String::as_str).unwrap_or_default();
                if value.parse::<i64>().is_err() {
                    let why = "for 'Gt', 'Lt' operators, the value must be an integer";
                    return Err(SelectorError(format!("values[0]: Invalid value: {value:?}: {why}")));
                }
            }
            _ => {
                for (i, value) in self.values.iter().enumerate() {
                    check(&format!("values[{i}][{}]", self.key), value, names::label_value(value))?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, first) = (&self.key, self.values.first().map(String::as_str).unwrap_or_default());
        let set = || {
            let mut sorted = self.values.clone();
            sorted.sort();
            sorted.join(",")
        };
        match self.operator {
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::Equals => write!(f, "{key}={first}"),
            Operator::NotEquals => write!(f, "{key}!={first}"),
            Operator::In => write!(f, "{key} in ({})", set()),
            Operator::NotIn => write!(f, "{key} notin ({})", set()),
            Operator::GreaterThan => write!(f, "{key}>{first}"),
            Operator::LessThan => write!(f, "{key}<{first}"),
        }
    }
}

// === impl FieldSelector ===

impl FieldSelector {
    /// Reads `metadata.name=a,status.phase!=Running`; a backslash takes a comma, an equals sign or itself literally.
    pub fn parse(text: &str) -> Result<FieldSelector, SelectorError> {
        let mut terms = Vec::new();
        for part in split_terms(text) {
            if part.is_empty() {
                continue;
            }
            let (field, negated, value) = split_term(part).ok_or_else(|| {
                SelectorError(format!("invalid selector: '{text}'; can't understand '{part}'"))
            })?;
            terms.push(FieldTerm { field: field.to_owned(), negated, value: unescape(value)? });
            if terms.len() > MOST_TERMS {
                return Err(SelectorError(format!("more than {MOST_TERMS} terms")));
            }
        }
        Ok(FieldSelector { terms })
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// The value a field must have, where the selector says exactly one.
    #[must_use]
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| t.field == field && !t.negated).map(|t| t.value.as_str())
    }

    pub fn matches(&self, field: impl Fn(&str) -> String) -> bool {
        self.terms.iter().all(|t| (field(&t.field) == t.value) != t.negated)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let operator = if term.negated { "!=" } else { "=" };
            write!(f, "{comma}{}{operator}{}", term.field, escape(&term.value))?;
        }
        Ok(())
    }
}

/// Splits at commas that no backslash protects.
fn split_terms(text: &str) -> Vec<&str> {
    let (mut out, mut start, mut escaped) = (Vec::new(), 0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                out.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out
}

fn split_term(part: &str) -> Option<(&str, bool, &str)> {
    let at = part.find(['=', '!'])?;
    let (field, rest) = part.split_at(at);
    let (negated, value) = match rest.strip_prefix("!=") {
        Some(value) => (true, value),
        None => (false, rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?),
    };
    (!field.is_empty()).then_some((field, negated, value))
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => {
                    let why = format!("invalid field selector: invalid escape sequence: \\{c}");
                    return Err(SelectorError(why));
                }
                None => {
                    let why = "invalid field selector: invalid escape sequence: \\";
                    return Err(SelectorError(why.to_owned()));
                }
            },
            ',' | '=' => {
                let why = format!("invalid field selector: unescaped character in value: {c}");
                return Err(SelectorError(why));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

// --- the grammar of label selectors ---

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Not,
    Equals,
    NotEquals,
    Greater,
    Less,
    Open,
    Close,
    Comma,
    End,
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
}

// === impl Reader ===

impl Reader {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let negated = self.peek() == &Token::Not;
        if negated {
            self.at += 1;
        }
        let key = match self.next() {
            Token::Word(key) => key,
            other => return Err(unexpected(&other, "!, identifier, or 'end of string'")),
        };
        let made = |operator, values| {
            let requirement = Requirement { key, operator, values };
            requirement.check().map(|()| requirement)
        };
        if negated {
            return made(Operator::DoesNotExist, vec![]);
        }
        let operator = match self.peek() {
            Token::End | Token::Comma => return made(Operator::Exists, vec![]),
            Token::Equals => Operator::Equals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            Token::Word(w) if w == "in" => Operator::In,
            Token::Word(w) if w == "notin" => Operator::NotIn,
            other => return Err(unexpected(other, "in, notin, =, ==, !=, gt, lt")),
        };
        self.at += 1;
        let values = match operator {
            Operator::In | Operator::NotIn => self.set()?,
            _ => vec![self.exact_value()?],
        };
        made(operator, values)
    }

    /// The value after an operator; nothing there is the empty value.
    fn exact_value(&mut self) -> Result<String, SelectorError> {
        match self.peek().clone() {
            Token::End | Token::Comma => Ok(String::new()),
            Token::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            other => Err(unexpected(&other, "identifier")),
        }
    }

    fn set(&mut self) -> Result<Vec<String>, SelectorError> {
        match self.next() {
            Token::Open => {}
            other => return Err(unexpected(&other, "'('")),
        }
        let mut values = Vec::new();
        let mut pending = String::new();
        loop {
            match self.next() {
                Token::Word(word) if pending.is_empty() => pending = word,
                Token::Comma => values.push(std::mem::take(&mut pending)),
                Token::Close => {
                    values.push(pending);
                    return Ok(values);
                }
                other => return Err(unexpected(&other, "',', or ')'")),
            }
        }
    }
}

fn unexpected(found: &Token, expected: &str) -> SelectorError {
    let found = match found {
        Token::Word(word) => word.as_str(),
        Token::Not => "!",
        Token::Equals => "=",
        Token::NotEquals => "!=",
        Token::Greater => ">",
        Token::Less => "<",
        Token::Open => "(",
        Token::Close => ")",
        Token::Comma => ",",
        Token::End => "",
    };
    SelectorError(format!("found '{found}', expected: {expected}"))
}

fn tokens(text: &str) -> Result<Vec<Token>, SelectorError> {
    let mut out = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let mut followed = |wanted| chars.next_if_eq(&wanted).is_some();
        out.push(match c {
            c if c.is_whitespace() => continue,
            '(' => Token::Open,
            ')' => Token::Close,
            ',' => Token::Comma,
            '>' => Token::Greater,
            '<' => Token::Less,
            '!' if followed('=') => Token::NotEquals,
            '!' => Token::Not,
            '=' => {
                followed('=');
                Token::Equals
            }
            c => {
                let mut word = String::from(c);
                while let Some(c) = chars.next_if(|c| !c.is_whitespace() && !"()!=<>,".contains(*c)) {
                    word.push(c);
                }
                Token::Word(word)
            }
        });
        if out.len() > 4 * MOST_TERMS {
            return Err(SelectorError("selector is too long".to_owned()));
        }
    }
    Ok(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_are_selected() {
        let labels = json!({"metadata": {"labels": {"app": "web", "tier": "a", "n": "7", "empty": ""}}});
        let rows = [
            ("", true),
            ("app", true),
            ("!app", false),
            ("!other", true),
            ("app=web", true),
            ("app==web", true),
            ("app = web , tier=a", true),
            ("app!=web", false),
            ("other!=web", true),
            ("tier in (a, b)", true),
            ("tier in (b)", false),
            ("tier notin (b,c)", true),
            ("other notin (b)", true),
            ("n>6", true),
            ("n<7", false),
            ("empty=", true),
            ("empty in (,x)", true),
            ("app=web,tier=b", false),
            ("in in (in)", false),
        ];
        for (text, hit) in rows {
            let selector = LabelSelector::parse(text).unwrap();
            assert_eq!(selector.matches_object(&labels), hit, "{text}");
            assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap().matches_object(&labels), hit);
        }
    }

    #[test]
    fn malformed_selectors_are_refused() {
        for text in
            ["a b", "=", "a in", "a in b", "a in (b", "a,,b", "a,", "!", "a=b=c", "a>x", "a/b/c=d", "a=-"]
        {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
        for text in ["a", "=b", "a=b\\x", "a=b=c"] {
            assert!(FieldSelector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_object_form_means_the_same() {
        let selector = LabelSelector::from_object(&json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["b"]}, {"key": "x", "operator": "Exists"}],
        }));
        assert_eq!(selector.to_string(), "app=web,tier notin (b),x");
    }

    #[test]
    fn fields_are_selected() {
        let field = |name: &str| match name {
            "a" => "1,=\\".to_owned(),
            "b" => "2".to_owned(),
            _ => String::new(),
        };
        for (text, hit) in
            [("a=1\\,\\=\\\\", true), ("b!=2", false), ("b==2,c=", true), ("", true), ("b=2,a!=x", true)]
        {
            let selector = FieldSelector::parse(text).unwrap();
            assert_eq!(selector.matches(field), hit, "{text}");
            assert_eq!(FieldSelector::parse(&selector.to_string()).unwrap(), selector);
        }
        assert_eq!(FieldSelector::parse("metadata.name=x").unwrap().exact("metadata.name"), Some("x"));
    }
}
