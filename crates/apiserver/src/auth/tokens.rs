//! Service account tokens as signed text: made, checked, and described to others by key set and discovery document.

use std::path::Path;
use std::sync::Arc;

use base::time::Wall;
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse, ThumbprintHash,
};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use x509::pem;

/// Signs and verifies tokens of one issuer.
pub struct Tokens {
    issuer: String,
    audiences: Vec<String>,
    signing: EncodingKey,
    header: Header,
    /// Keys that are believed; the first is the one that signs.
    keys: Vec<Believed>,
}

struct Believed {
    id: String,
    key: DecodingKey,
    algorithm: Algorithm,
    jwk: Jwk,
}

/// What a token says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    pub aud: OneOrMany,
    pub exp: i64,
    pub iat: i64,
    pub iss: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub private: Private,
    pub nbf: i64,
    pub sub: String,
}

/// The part of the claims that is about objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Private {
    pub namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    pub serviceaccount: Reference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    #[serde(default)]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// A list that others may write as a single text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OneOrMany(pub Vec<String>);

/// Why a token is not believed. What it says is not repeated: it may be in somebody's logs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Another issuer's, or no such token at all: somebody else may know it.
    #[error("not a token of this issuer")]
    Foreign,
    #[error("service account token signature is invalid")]
    Signature,
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    Early,
    #[error("token audiences {0:?} is invalid for the target audiences {1:?}")]
    Audience(Vec<String>, Vec<String>),
    #[error("{0}")]
    Invalidated(String),
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("reading {path}: {cause}")]
    File { path: std::path::PathBuf, cause: std::io::Error },
    #[error("no usable key for service account tokens in {0}")]
    NoKey(String),
}

/// A minute between clocks, as upstream's verification allows.
const LEEWAY: i64 = 60;

/// Makes a token of claims; None: it cannot.
pub type Sign = Arc<dyn Fn(&Value) -> Option<String> + Send + Sync>;

/// Signs any claims with a private key as PEM: what the tokens of Secrets say is not ours to say.
pub fn signer(signing: &str) -> Result<Sign, KeyError> {
    let (signing, header) = signing_key(signing)?;
    Ok(Arc::new(move |claims| jsonwebtoken::encode(&header, claims, &signing).ok()))
}

fn signing_key(signing: &str) -> Result<(EncodingKey, Header), KeyError> {
    let no_key = || KeyError::NoKey("the signing key".to_owned());
    let (signing, algorithm) = private_key(signing).ok_or_else(no_key)?;
    let own = Jwk::from_encoding_key(&signing, algorithm).ok().and_then(|jwk| believe(jwk, algorithm));
    let mut header = Header::new(algorithm);
    header.typ = None;
    header.kid = Some(own.ok_or_else(no_key)?.id);
    Ok((signing, header))
}

// === impl Tokens ===

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl Tokens {
    /// `signing` is a private key as PEM (P-256, P-384 or RSA); `others` are files with further keys that are believed
    /// (`--service-account-key-file`).
    pub fn new(
        issuer: &str,
        audiences: Vec<String>,
        signing: &str,
        others: &[impl AsRef<Path>],
    ) -> Result<Tokens, KeyError> {
        let no_key = || KeyError::NoKey("the signing key".to_owned());
        let (signing, header) = signing_key(signing)?;
        let algorithm = header.alg;
        let own = Jwk::from_encoding_key(&signing, algorithm).ok().and_then(|jwk| believe(jwk, algorithm));
        let own = own.ok_or_else(no_key)?;
        let mut keys = vec![own];
        for path in others {
            let path = path.as_ref();
            let text = std::fs::read_to_string(path)
                .map_err(|cause| KeyError::File { path: path.to_owned(), cause })?;
            let found = believed_in(&text);
            if found.is_empty() {
                return Err(KeyError::NoKey(path.display().to_string()));
            }
            for key in found {
                if keys.iter().all(|k| k.id != key.id) {
                    keys.push(key);
                }
            }
        }
        let audiences = if audiences.is_empty() { vec![issuer.to_owned()] } else { audiences };
        Ok(Tokens { issuer: issuer.to_owned(), audiences, signing, header, keys })
    }

    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Whom a token is for unless it says otherwise: this server.
    #[must_use]
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// Signs; the issuer is ours whatever the claims say.
    pub fn sign(&self, mut claims: Claims) -> Result<String, TokenError> {
        self.issuer.clone_into(&mut claims.iss);
        jsonwebtoken::encode(&self.header, &claims, &self.signing).map_err(|_| TokenError::Signature)
    }

    /// Reads a token: signature, issuer, time. Whether it is for us and whether its objects still exist is the
    /// caller's to ask.
    pub fn verify(&self, token: &str, now: Wall) -> Result<Claims, TokenError> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| TokenError::Foreign)?;
        // Read before it is believed, only to know whose it is.
        let unread =
            jsonwebtoken::dangerous::insecure_decode::<Issuer>(token).map_err(|_| TokenError::Foreign)?;
        if unread.claims.iss != self.issuer {
            return Err(TokenError::Foreign);
        }
        let fits = |key: &&Believed| match &header.kid {
            Some(id) => key.id == *id,
            None => key.algorithm == header.alg,
        };
        let claims = self.keys.iter().filter(fits).find_map(|key| {
            let mut validation = Validation::new(key.algorithm);
            // Time is checked below, by our own clock.
            validation.validate_exp = false;
            validation.validate_aud = false;
            validation.required_spec_claims.clear();
            jsonwebtoken::decode::<Claims>(token, &key.key, &validation).ok()
        });
        let claims = claims.ok_or(TokenError::Signature)?.claims;
        if claims.exp < now.secs() - LEEWAY {
            return Err(TokenError::Expired);
        }
        if claims.nbf > now.secs() + LEEWAY || claims.iat > now.secs() + LEEWAY {
            return Err(TokenError::Early);
        }
        Ok(claims)
    }

    /// `/openid/v1/jwks`
    #[must_use]
    pub fn key_set(&self) -> Value {
        let keys = self.keys.iter().map(|k| k.jwk.clone()).collect();
        serde_json::to_value(JwkSet { keys }).unwrap_or_default()
    }

    /// `/.well-known/openid-configuration`
    #[must_use]
    pub fn discovery(&self, jwks_uri: Option<&str>, server: &str) -> Value {
        let mut algorithms: Vec<String> = self.keys.iter().map(|k| format!("{:?}", k.algorithm)).collect();
        algorithms.sort();
        algorithms.dedup();
        let uri = jwks_uri.map_or_else(|| format!("https://{server}/openid/v1/jwks"), str::to_owned);
        json!({
            "issuer": self.issuer,
            "jwks_uri": uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        })
    }
}

#[derive(Deserialize)]
struct Issuer {
    #[serde(default)]
    iss: String,
}

fn private_key(text: &str) -> Option<(EncodingKey, Algorithm)> {
    let bytes = text.as_bytes();
    if let Ok(key) = EncodingKey::from_rsa_pem(bytes) {
        return Some((key, Algorithm::RS256));
    }
    let key = EncodingKey::from_ec_pem(bytes).ok()?;
    // The curve decides the algorithm: the one under which the key signs.
    let works = |a: &Algorithm| jsonwebtoken::encode(&Header::new(*a), &json!({}), &key).is_ok();
    let algorithm = [Algorithm::ES256, Algorithm::ES384].into_iter().find(works)?;
    Some((key, algorithm))
}

fn believed_in(text: &str) -> Vec<Believed> {
    let mut out = Vec::new();
    for (label, der) in pem::decode(text) {
        let section = pem::encode(&label, &der);
        if label.ends_with("PRIVATE KEY") {
            let key = private_key(&section).and_then(|(key, algorithm)| {
                Jwk::from_encoding_key(&key, algorithm).ok().and_then(|jwk| believe(jwk, algorithm))
            });
            out.extend(key);
        } else if label.ends_with("PUBLIC KEY") {
            let key = DecodingKey::from_rsa_pem(section.as_bytes())
                .or_else(|_| DecodingKey::from_ec_pem(section.as_bytes()));
            let jwk = key.and_then(|key| Jwk::from_decoding_key(&key, None)).ok();
            let jwk = jwk.and_then(|jwk| {
                let algorithm = match &jwk.algorithm {
                    AlgorithmParameters::RSA(_) => Algorithm::RS256,
                    AlgorithmParameters::EllipticCurve(p) if p.curve == EllipticCurve::P256 => {
                        Algorithm::ES256
                    }
                    AlgorithmParameters::EllipticCurve(p) if p.curve == EllipticCurve::P384 => {
                        Algorithm::ES384
                    }
                    _ => return None,
                };
                Some((jwk, algorithm))
            });
            out.extend(jwk.and_then(|(jwk, algorithm)| believe(jwk, algorithm)));
        }
    }
    out
}

fn believe(mut jwk: Jwk, algorithm: Algorithm) -> Option<Believed> {
    let id = jwk.thumbprint(ThumbprintHash::SHA256).ok()?;
    jwk.common.key_id = Some(id.clone());
    jwk.common.public_key_use = Some(PublicKeyUse::Signature);
    jwk.common.key_algorithm = Some(KeyAlgorithm::from(algorithm));
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    Some(Believed { id, key, algorithm, jwk })
}

// === impl OneOrMany ===

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<OneOrMany, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(one) => Ok(OneOrMany(vec![one])),
            other => serde_json::from_value(other).map(OneOrMany).map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use crate::auth::pki::Key;

    pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
    const NOW: Wall = Wall(1_800_000_000_000_000_000);

    pub(crate) fn tokens() -> Tokens {
        Tokens::new(ISSUER, vec![], &Key::generate().unwrap().to_pem(), &[] as &[&Path]).unwrap()
    }

    fn claims() -> Claims {
        Claims {
            aud: OneOrMany(vec![ISSUER.into()]),
            exp: NOW.secs() + 3600,
            iat: NOW.secs(),
            nbf: NOW.secs(),
            sub: "system:serviceaccount:ns:bot".into(),
            jti: "id".into(),
            private: Private {
                namespace: "ns".into(),
                serviceaccount: Reference { name: "bot".into(), uid: "1".into() },
                ..Private::default()
            },
            ..Claims::default()
        }
    }

    #[test]
    fn a_token_is_believed_in_its_time_and_from_its_issuer_only() {
        let ours = tokens();
        let token = ours.sign(claims()).unwrap();
        assert_eq!(ours.verify(&token, NOW).unwrap().private, claims().private);
        let at = |secs: i64| ours.verify(&token, Wall::from_secs(NOW.secs() + secs)).map(drop);
        assert_eq!(at(3600 + 59), Ok(()));
        assert_eq!(at(3600 + 61), Err(TokenError::Expired));
        assert_eq!(at(-61), Err(TokenError::Early));
        assert_eq!(tokens().verify(&token, NOW), Err(TokenError::Signature));
        let other = Tokens::new("https://else", vec![], &Key::generate().unwrap().to_pem(), &[] as &[&Path]);
        assert_eq!(other.unwrap().verify(&token, NOW), Err(TokenError::Foreign));
        assert_eq!(ours.verify("abc", NOW), Err(TokenError::Foreign));
        let (head, tail) = token.rsplit_once('.').unwrap();
        let flipped = if tail.starts_with('A') { "B" } else { "A" };
        let forged = format!("{head}.{flipped}{}", &tail[1..]);
        assert_eq!(ours.verify(&forged, NOW), Err(TokenError::Signature));
    }

    #[test]
    fn an_unsigned_token_is_not_believed() {
        use base64::Engine as _;
        let b64 = |v: &Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(v.to_string());
        let mut body = serde_json::to_value(claims()).unwrap();
        body["iss"] = ISSUER.into();
        for alg in ["none", "HS256"] {
            let token = format!("{}.{}.", b64(&json!({"alg": alg})), b64(&body));
            assert!(tokens().verify(&token, NOW).is_err());
        }
    }

    #[test]
    fn rotated_keys_are_still_believed_and_the_key_set_names_them_all() {
        let dir = tempfile::tempdir().unwrap();
        let old = Key::generate().unwrap().to_pem();
        let path = dir.path().join("old.key");
        std::fs::write(&path, &old).unwrap();
        let before = Tokens::new(ISSUER, vec![], &old, &[] as &[&Path]).unwrap();
        let after = Tokens::new(ISSUER, vec![], &Key::generate().unwrap().to_pem(), &[&path]).unwrap();
        let token = before.sign(claims()).unwrap();
        assert!(after.verify(&token, NOW).is_ok());
        let keys = after.key_set();
        assert_eq!(keys["keys"].as_array().unwrap().len(), 2);
        assert_eq!(keys["keys"][0]["alg"], "ES256");
        assert!(keys["keys"][0].get("d").is_none());
        assert_eq!(
            after.discovery(None, "10.0.0.1:6443")["jwks_uri"],
            "https://10.0.0.1:6443/openid/v1/jwks"
        );
    }
}
