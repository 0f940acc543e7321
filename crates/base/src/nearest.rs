//! What somebody may have meant by a word that nobody knows.

/// Words that differ in more are others.
const FAR: usize = 3;

/// The known word that is nearest, where one is near enough: a third of its letters may be wrong, and one at least.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let near = |candidate: &'a str| {
        let allowed = (candidate.chars().count() / 3).clamp(1, FAR - 1);
        let steps = distance(&word, &candidate.to_lowercase());
        (steps <= allowed && word.chars().count() > 1).then_some((steps, candidate))
    };
    known.into_iter().filter_map(near).min_by_key(|(steps, _)| *steps).map(|(_, candidate)| candidate)
}

/// Letters to insert, to leave out, to change, and neighbours to exchange.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) >= FAR {
        return FAR;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            let mut steps = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + same);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                steps = steps.min(before[j - 2] + 1);
            }
            row.push(steps);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_that_was_meant_is_found() {
        let known = ["kubelet", "kube-proxy", "up", "pods", "config", "config-dir", "bash", "zsh", "status"];
        for (word, meant) in [
            ("kublet", Some("kubelet")),
            ("kubeproxy", Some("kube-proxy")),
            ("confg", Some("config")),
            ("ocnfig", Some("config")),
            ("bsh", Some("bash")),
            ("Pods", Some("pods")),
            ("pod", Some("pods")),
            ("sttus", Some("status")),
            ("xyzzy", None),
            ("u", None),
            ("", None),
            ("kubernetes", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
    }
}
