//! What a machine that joins and the cluster it joins know of each other before there are certificates: kubeadm's
//! `cluster-info`, signed with a token, and the public key of the authority.

use api::config::join::Token;
use api::yaml::{DuplicateKeys, to_value};
use aws_lc_rs::{digest, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use x509_parser::pem::Pem;

pub(crate) const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";

/// The public part of a kubeconfig: where the API server is, and whom to trust.
pub(crate) fn cluster_info(server: &str, ca: &str) -> String {
    let cluster = json!({"server": server, "certificate-authority-data": STANDARD.encode(ca)});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}],
        "contexts": [], "users": [], "current-context": "", "preferences": {},
    });
    api::yaml::from_value_to_yaml(&config)
}

/// The server and the authority's certificates of such a text.
pub(crate) fn read(kubeconfig: &str) -> Result<(String, String), String> {
    let config = to_value(kubeconfig.as_bytes(), DuplicateKeys::Reject).map_err(|e| e.to_string())?;
    let cluster = &config["clusters"][0]["cluster"];
    let server = cluster["server"].as_str().unwrap_or_default().to_owned();
    let ca = cluster["certificate-authority-data"].as_str().and_then(|data| STANDARD.decode(data).ok());
    let ca = ca.and_then(|bytes| String::from_utf8(bytes).ok()).filter(|text| text.contains("CERTIFICATE"));
    Ok((server, ca.ok_or("it names no authority")?))
}

/// The kubeconfig of a `cluster-info`, if the token signed it.
pub(crate) fn verified(map: &Value, token: &Token) -> Result<String, String> {
    let content = map["data"]["kubeconfig"].as_str().ok_or("cluster-info has no kubeconfig")?;
    let signature = map["data"][format!("jws-kubeconfig-{}", token.id)].as_str();
    let signature = signature.ok_or_else(|| {
        format!("the cluster does not know the token {}, or it has expired: make one with `longshore token create`", token.id)
    })?;
    match is_signed(content, signature, token) {
        true => Ok(content.to_owned()),
        false => {
            Err(format!("cluster-info is signed with another secret than that of the token {}", token.id))
        }
    }
}

/// A JSON web signature without its content, HS256.
pub(crate) fn signature(content: &str, token: &Token) -> String {
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": token.id}).to_string());
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
    let tag = hmac::sign(&key, format!("{header}.{}", URL_SAFE_NO_PAD.encode(content)).as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

fn is_signed(content: &str, signature: &str, token: &Token) -> bool {
    let Some((header, signed)) = signature.split_once("..") else { return false };
    let header_value = URL_SAFE_NO_PAD.decode(header).ok();
    let header_value = header_value.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    if !header_value.is_some_and(|value| value["alg"] == "HS256" && value["kid"] == token.id.as_str()) {
        return false;
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
    let text = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    URL_SAFE_NO_PAD.decode(signed).is_ok_and(|tag| hmac::verify(&key, text.as_bytes(), &tag).is_ok())
}

/// SHA-256 of the public key of each certificate.
pub(crate) fn pins(ca: &str) -> Result<Vec<[u8; 32]>, String> {
    let mut pins = Vec::new();
    for pem in Pem::iter_from_buffer(ca.as_bytes()) {
        let pem = pem.map_err(|e| format!("the authority's certificate: {e}"))?;
        let certificate = pem.parse_x509().map_err(|e| format!("the authority's certificate: {e}"))?;
        let hash = digest::digest(&digest::SHA256, certificate.public_key().raw);
        pins.push(hash.as_ref().try_into().map_err(|_| "a hash of another length")?);
    }
    match pins.is_empty() {
        true => Err("there is no certificate of an authority".to_owned()),
        false => Ok(pins),
    }
}

/// As kubeadm writes one.
pub(crate) fn pin_text(pin: &[u8; 32]) -> String {
    let digits: Vec<String> = pin.iter().map(|octet| format!("{octet:02x}")).collect();
    format!("sha256:{}", digits.concat())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const CONTENT: &str = "some content";

    fn signed(content: &str, id: &str, secret: &str) -> String {
        signature(content, &Token { id: id.to_owned(), secret: secret.to_owned() })
    }

    #[test]
    fn only_who_knows_the_token_can_say_where_the_cluster_is() {
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let map = |signed: &str| json!({"data": {"kubeconfig": CONTENT, "jws-kubeconfig-abcdef": signed}});
        let good = signed(CONTENT, "abcdef", "0123456789abcdef");
        assert_eq!(verified(&map(&good), &token).unwrap(), CONTENT);
        for (content, id, secret) in [
            ("other content", "abcdef", "0123456789abcdef"),
            (CONTENT, "ghijkl", "0123456789abcdef"),
            (CONTENT, "abcdef", "0123456789abcdeg"),
        ] {
            let told = verified(&map(&signed(content, id, secret)), &token).unwrap_err();
            assert!(told.contains("another secret") && !told.contains("0123456789"), "{told}");
        }
        let unknown = json!({"data": {"kubeconfig": CONTENT}});
        assert!(verified(&unknown, &token).unwrap_err().contains("longshore token create"));
        assert!(!is_signed(CONTENT, "nonsense", &token) && !is_signed(CONTENT, "", &token));
    }

    #[test]
    fn what_is_written_is_read() {
        let ca = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let text = cluster_info("https://192.0.2.1:6443", ca);
        assert_eq!(read(&text).unwrap(), ("https://192.0.2.1:6443".to_owned(), ca.to_owned()));
        assert!(read("clusters: []").is_err() && pins("").is_err() && pins(ca).is_err());
        assert_eq!(pin_text(&[0x0f; 32]), format!("sha256:{}", "0f".repeat(32)));
    }
}
