//! The container hash: a changed hash restarts the container, so it covers only what must.

use base::fnv::fnv1a32;

/// Upstream's container hash over name and image, so that a takeover from (or by) another kubelet
/// of the same contract restarts nothing.
///
/// The hashed text is not the JSON itself but a listing of its bytes in decimal, which is what
/// upstream's dump of a byte slice looks like.
#[must_use]
pub fn container_hash(name: &str, image: &str) -> u32 {
    let mut json = String::from("{\"image\":");
    push_json_string(&mut json, image);
    json.push_str(",\"name\":");
    push_json_string(&mut json, name);
    json.push('}');
    let bytes: Vec<String> = json.bytes().map(|b| b.to_string()).collect();
    fnv1a32(format!("([]uint8)[{}]", bytes.join(" ")).as_bytes())
}

/// Go's encoder escapes HTML characters and the two line separators; serde_json does not.
fn push_json_string(out: &mut String, text: &str) {
    for c in serde_json::Value::from(text).to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_contract() {
        assert_eq!(format!("{:x}", container_hash("test_container", "foo/image:v1")), "8e45cbd0");
    }

    #[test]
    fn escapes_like_go() {
        let mut s = String::new();
        push_json_string(&mut s, "a<b>&\"\u{2028}\u{1}");
        assert_eq!(s, r#""a\u003cb\u003e\u0026\"\u2028\u0001""#);
    }
}
