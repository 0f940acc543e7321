//! The page that says which settings this build acts on, made from the tables themselves.

use super::fields::FIELDS;
use super::flags::{self, FLAGS, Target};
use crate::config::doc::{Field, Standing};

/// The configuration section of the compatibility page.
pub fn compatibility() -> String {
    let mut out = String::from(
        "Every field and flag is read, defaulted and validated. \"not yet honoured\" means that nothing acts on\n\
         the value so far; the kubelet says so in its log when a user sets it.\n\n\
         | field | flag | default | standing |\n|---|---|---|---|\n",
    );
    for field in FIELDS {
        let flag = flags::for_field(field.path).map(|f| format!("`--{f}`"));
        out.push_str(&format!(
            "| `{}` | {} | {} | {} |\n",
            field.path,
            flag.unwrap_or_default(),
            default_text(field),
            standing_text(field.standing),
        ));
    }
    out.push_str("\n| flag without field | default | standing |\n|---|---|---|\n");
    for row in FLAGS {
        if let Target::Own(standing) = row.target {
            let default = match row.flag.default {
                "" => String::new(),
                text => format!("`{text}`"),
            };
            let name = row.flag.name;
            out.push_str(&format!("| `--{name}` | {default} | {} |\n", standing_text(standing)));
        }
    }
    out
}

fn standing_text(standing: Standing) -> &'static str {
    match standing {
        Standing::Honoured => "honoured",
        Standing::NotYet => "not yet honoured",
        Standing::Inert => "without effect, as upstream",
    }
}

fn default_text(field: &Field) -> String {
    match field.default.value() {
        None => String::new(),
        Some(serde_json::Value::String(text)) => format!("`{text}`"),
        Some(value) => format!("`{value}`"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::Path;

    const BEGIN: &str = "<!-- configuration: begin, made from the tables of crates/api -->\n";
    const END: &str = "<!-- configuration: end -->\n";

    /// `UPDATE_DOCS=1 cargo test -p api compatibility` writes the section anew.
    #[test]
    fn the_page_says_what_the_tables_say() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (head, rest) = page.split_once(BEGIN).expect("the page has no beginning mark");
        let (section, tail) = rest.split_once(END).expect("the page has no end mark");
        let wanted = format!("\n{}\n", compatibility());
        if section == wanted {
            return;
        }
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, format!("{head}{BEGIN}{wanted}{END}{tail}")).unwrap();
            return;
        }
        panic!("docs/compatibility.md is stale: UPDATE_DOCS=1 cargo test -p api compatibility");
    }
}
