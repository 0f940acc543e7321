//! `$(NAME)` references in values, commands, arguments and subPath expressions.

/// Bytes that one container's environment and command may come to, references replaced. Linux starts no program with more
/// than three quarters of 8 MiB of arguments and environment, whatever its limits say, so nothing that could run is
/// refused; and a runtime takes no message above 16 MiB. Without an end, eight variables of ten references each to the
/// one before are 10 GB.
pub const EXPANSION_MAX: usize = 6 << 20;

/// With its references replaced, the text is longer than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Replaces `$(NAME)` by what `lookup` says. An unknown name stays as written, `$$` is one `$`, and a `$` that begins
/// nothing is itself. Gives up as soon as there are more than `max` bytes.
pub fn expand<'v>(
    text: &str,
    max: usize,
    mut lookup: impl FnMut(&str) -> Option<&'v str>,
) -> Result<String, TooLong> {
    let mut out = String::with_capacity(text.len().min(max));
    let mut put = |piece: &str| {
        let fits = piece.len() <= max - out.len();
        fits.then(|| out.push_str(piece)).ok_or(TooLong)
    };
    // Looked for once: a text full of open parentheses is not to be read to its end for each of them.
    let last = text.rfind(')').unwrap_or(0);
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        put(&rest[..at])?;
        rest = &rest[at + 1..];
        let closes = text.len() - rest.len() < last;
        if let Some(after) = rest.strip_prefix('$') {
            put("$")?;
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').filter(|_| closes).and_then(|r| r.split_once(')'))
        {
            match lookup(name) {
                Some(value) => put(value)?,
                None => ["$(", name, ")"].into_iter().try_for_each(&mut put)?,
            }
            rest = after;
        } else {
            put("$")?;
        }
    }
    put(rest)?;
    Ok(out)
}

/// The words of a command, its references replaced. `field` is what the user calls them; together they may have `max`
/// bytes.
pub fn expand_words<'v>(
    field: &str,
    words: &[String],
    max: usize,
    mut lookup: impl FnMut(&str) -> Option<&'v str>,
) -> Result<Vec<String>, String> {
    let (mut out, mut left) = (Vec::with_capacity(words.len()), max);
    for (index, word) in words.iter().enumerate() {
        let expanded = expand(word, left, &mut lookup).map_err(|TooLong| {
            format!("{field}[{index}] is too long: {}", too_much("the environment and the command"))
        })?;
        left = left.saturating_sub(expanded.len() + PER_STRING);
        out.push(expanded);
    }
    Ok(out)
}

/// The byte that ends a string, and the pointer to it.
pub(super) const PER_STRING: usize = 9;

/// For the user, in the Pod's status.
pub(super) fn too_much(what: &str) -> String {
    format!("with references replaced, {what} would have more than {EXPANSION_MAX} bytes")
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
            assert_eq!(expand(text, 100, vars).as_deref(), Ok(want), "{text:?}");
        }
    }

    #[test]
    fn a_text_ends_at_its_last_allowed_byte() {
        for (text, want) in [
            ("$(VAR_A)bc", Ok("Abc")),
            ("$(VAR_A)bcd", Err(TooLong)),
            ("ab$(VAR_A)$(EMPTY)", Ok("abA")),
            ("ab$(VAR_A)$(VAR_B)", Err(TooLong)),
            ("a$$$$", Ok("a$$")),
            ("a$$$$$", Err(TooLong)),
            ("$()", Ok("$()")),
            ("$(X)", Err(TooLong)),
        ] {
            assert_eq!(expand(text, 3, vars).as_deref(), want.as_ref().copied(), "{text:?}");
        }
    }

    #[test]
    fn a_text_full_of_open_parentheses_is_read_once() {
        // Read to its end for each of them, this takes the better part of an hour.
        let text = "$(".repeat(8 << 20);
        assert_eq!(expand(&text, usize::MAX, vars).map(|out| out.len()), Ok(text.len()));
    }

    #[test]
    fn words_share_what_they_may_come_to() {
        let words = ["$(VAR_A)".to_owned(), "$(VAR_B)".to_owned(), "c".to_owned()];
        let all = expand_words("args", &words, 2 * PER_STRING + 3, vars);
        assert_eq!(all, Ok(vec!["A".into(), "B".into(), "c".into()]));
        let error = expand_words("args", &words, 2 * PER_STRING + 2, vars).err().unwrap_or_default();
        assert!(error.starts_with("args[2] is too long: "), "{error}");
    }

    proptest! {
        /// Doubling every dollar makes any text survive.
        #[test]
        fn escaped_text_is_itself(text in "\\PC*") {
            prop_assert_eq!(expand(&text.replace('$', "$$"), usize::MAX, vars), Ok(text));
        }

        /// Without a closing parenthesis nothing can be replaced; only `$$` shrinks.
        #[test]
        fn no_reference_no_lookup(text in "[^)]*") {
            let out = expand(&text, usize::MAX, |_| panic!("looked up a name"));
            prop_assert_eq!(out, Ok(text.replace("$$", "$")));
        }
    }
}
