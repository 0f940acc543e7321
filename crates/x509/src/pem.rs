//! PEM: the armour keys and certificates wear in files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

#[must_use]
pub fn encode(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    for line in body.as_bytes().chunks(64) {
        out.extend(line.iter().map(|b| char::from(*b)));
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

/// The sections of a PEM file, in order: label and content. Text between them is ignored.
#[must_use]
pub fn decode(text: &str) -> Vec<(String, Vec<u8>)> {
    let mut out = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines().map(str::trim) {
        if let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|l| l.strip_suffix("-----")) {
            open = Some((label.to_owned(), String::new()));
        } else if let Some(label) = line.strip_prefix("-----END ").and_then(|l| l.strip_suffix("-----")) {
            if let Some((begun, body)) = open.take()
                && begun == label
                && let Ok(der) = STANDARD.decode(body)
            {
                out.push((begun, der));
            }
        } else if let Some((_, body)) = &mut open
            && !line.contains(':')
        {
            body.push_str(line);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let der: Vec<u8> = (0..=255).collect();
        let text = format!("noise\n{}\n{}", encode("A", &der), encode("B C", &[1]));
        assert_eq!(decode(&text), [("A".to_owned(), der), ("B C".to_owned(), vec![1])]);
        assert!(text.lines().all(|l| l.len() <= 64));
        assert!(decode("-----BEGIN A-----\n!!\n-----END A-----").is_empty());
    }
}
