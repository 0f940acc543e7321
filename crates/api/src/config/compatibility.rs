//! The page that says which settings this build acts on, made from the tables themselves.

use super::doc::{Field, Standing};
use super::flag::{self, FlagRow, Target};

/// The configuration section of one agent on its compatibility page.
pub fn compatibility(agent: &str, fields: &[Field], flags: &[FlagRow]) -> String {
    let mut out = format!(
        "Every field and flag is read, defaulted and validated. \"not yet honoured\" means that nothing acts on\n\
         the value so far, \"in part\" that not everything does which should; {agent} says so in its log when a user sets it.\n\n\
         | field | flag | default | standing |\n|---|---|---|---|\n",
    );
    for field in fields {
        let flag = flag::for_field(flags, field.path).map(|f| format!("`--{f}`"));
        out.push_str(&format!(
            "| `{}` | {} | {} | {} |\n",
            field.path,
            flag.unwrap_or_default(),
            default_text(field),
            standing_text(field.standing),
        ));
    }
    out.push_str("\n| flag without field | default | standing |\n|---|---|---|\n");
    for row in flags {
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

fn standing_text(standing: Standing) -> String {
    match standing {
        Standing::Honoured => "honoured".to_owned(),
        Standing::NotYet => "not yet honoured".to_owned(),
        Standing::InPart(how) => format!("in part: {how}"),
        Standing::Inert => "without effect, as upstream".to_owned(),
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
    use crate::config::{kubelet, proxy};

    /// `UPDATE_DOCS=1 cargo test -p api compatibility` writes the sections anew.
    #[test]
    fn the_pages_say_what_the_tables_say() {
        let kubelet = compatibility("the kubelet", kubelet::fields::FIELDS, kubelet::flags::FLAGS);
        let proxy = compatibility("kube-proxy", proxy::fields::FIELDS, proxy::flags::FLAGS);
        for (page, section) in [("kubelet-configuration", kubelet), ("kube-proxy", proxy)] {
            let path = format!("{}/../../docs/compatibility/{page}.md", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap();
            let wanted = replaced(&text, &section);
            if std::env::var_os("UPDATE_DOCS").is_some() {
                std::fs::write(&path, &wanted).unwrap();
            } else if text != wanted {
                panic!(
                    "docs/compatibility/{page}.md is stale: UPDATE_DOCS=1 cargo test -p api compatibility"
                );
            }
        }
    }

    fn replaced(page: &str, section: &str) -> String {
        const BEGIN: &str = "<!-- configuration: begin, made from the tables of crates/api -->\n";
        const END: &str = "<!-- configuration: end -->\n";
        let (head, rest) = page.split_once(BEGIN).expect("the page has no beginning mark");
        let (_, tail) = rest.split_once(END).expect("the page has no end mark");
        format!("{head}{BEGIN}\n{section}\n{END}{tail}")
    }
}
