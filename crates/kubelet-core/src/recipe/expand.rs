//! `$(NAME)` references in values, commands, arguments and subPath expressions.

/// Replaces `$(NAME)` by what `lookup` says. An unknown name stays as written, `$$` is one `$`, and
/// a `$` that begins nothing is itself.
pub fn expand<'v>(text: &str, mut lookup: impl FnMut(&str) -> Option<&'v str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vars(name: &str) -> Option<&'static str> {
        match name {
            "VAR_A" => Some("A"),
            "VAR_B" => Some("B"),
            "EMPTY" => Some(""),
            "REF" => Some("$(VAR_A)"),
            _ => None,
        }
    }

    #[test]
    fn references() {
        for (text, want) in [
            ("$(VAR_A)", "A"),
            ("___$(VAR_B)___", "___B___"),
            ("$(VAR_A)$(VAR_B)-$(EMPTY)-", "AB--"),
            ("$(MISSING)", "$(MISSING)"),
            ("$$(VAR_A)", "$(VAR_A)"),
            ("$$$(VAR_A)", "$A"),
            ("$$$$(VAR_A)", "$$(VAR_A)"),
            ("f000-$(REF)", "f000-$(VAR_A)"),
            ("$VAR_A", "$VAR_A"),
            ("foo$", "foo$"),
            ("$(VAR_A", "$(VAR_A"),
            ("$(VAR_A$(VAR_B)", "$(VAR_A$(VAR_B)"),
            ("$((VAR_A))", "$((VAR_A))"),
            ("$()", "$()"),
            ("$é$(VAR_A)", "$éA"),
            ("\n$(VAR_A)\n", "\nA\n"),
        ] {
            assert_eq!(expand(text, vars), want, "{text:?}");
        }
    }

    proptest! {
        /// Doubling every dollar makes any text survive.
        #[test]
        fn escaped_text_is_itself(text in "\\PC*") {
            prop_assert_eq!(expand(&text.replace('$', "$$"), vars), text);
        }

        /// Without a closing parenthesis nothing can be replaced; only `$$` shrinks.
        #[test]
        fn no_reference_no_lookup(text in "[^)]*") {
            let out = expand(&text, |_| panic!("looked up a name"));
            prop_assert_eq!(out, text.replace("$$", "$"));
        }
    }
}
