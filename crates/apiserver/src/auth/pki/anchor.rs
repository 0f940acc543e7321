//! The authority that others know this server by.

use rustls::pki_types::CertificateDer;
use x509::{pem, verify};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::tls;

/// The end of the chain that begins with the certificate in `shown`, as PEM. Who issued what is looked for in what follows the
/// certificate in its file, and among the authorities clients are believed by: with kubeadm they issue both. None when nobody
/// there has issued it.
pub(super) fn find(shown: &str, client_ca: &str) -> Option<String> {
    let (own, clients) = (tls::certificates(shown), tls::certificates(client_ca));
    let shown = parse(own.first()?)?;
    let others: Vec<X509Certificate<'_>> = own.iter().skip(1).chain(&clients).filter_map(parse).collect();
    let mut end = &shown;
    let mut is_vouched_for = has_issued(end, end);
    // No chain is longer than what there is, and one that goes in a circle ends here too.
    for _ in &others {
        if has_issued(end, end) {
            break;
        }
        let issuer = others.iter().find(|other| other.is_ca() && has_issued(other, end));
        let Some(issuer) = issuer else { break };
        (end, is_vouched_for) = (issuer, true);
    }
    is_vouched_for.then(|| pem::encode("CERTIFICATE", end.as_raw()))
}

fn parse<'a>(der: &'a CertificateDer<'static>) -> Option<X509Certificate<'a>> {
    X509Certificate::from_der(der).ok().map(|(_, parsed)| parsed)
}

fn has_issued(issuer: &X509Certificate<'_>, certificate: &X509Certificate<'_>) -> bool {
    issuer.subject().as_raw() == certificate.issuer().as_raw()
        && verify::certificate_signature(certificate, issuer.public_key())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    struct Authority {
        pem: String,
        issuer: Issuer<'static, KeyPair>,
    }

    fn params(name: &str, is_ca: bool) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params
    }

    fn authority(name: &str, above: Option<&Authority>) -> Authority {
        let (params, key) = (params(name, true), KeyPair::generate().unwrap());
        let made = match above {
            Some(above) => params.signed_by(&key, &above.issuer),
            None => params.self_signed(&key),
        };
        Authority { pem: made.unwrap().pem(), issuer: Issuer::new(params, key) }
    }

    fn leaf(above: &Authority) -> String {
        params("kube-apiserver", false).signed_by(&KeyPair::generate().unwrap(), &above.issuer).unwrap().pem()
    }

    fn der(text: &str) -> Vec<CertificateDer<'static>> {
        tls::certificates(text)
    }

    #[test]
    fn the_authority_is_found_at_the_end_of_the_chain() {
        let root = authority("root", None);
        let middle = authority("middle", Some(&root));
        let (other, namesake) = (authority("other", None), authority("root", None));
        let (direct, below) = (leaf(&root), leaf(&middle));
        let alone = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap().cert.pem();
        let join = |parts: &[&str]| parts.concat();
        for (what, shown, client_ca, expected) in [
            ("among the clients'", direct.clone(), join(&[&other.pem, &root.pem]), Some(&root.pem)),
            ("in its own file", join(&[&direct, &root.pem]), String::new(), Some(&root.pem)),
            ("over both", join(&[&below, &middle.pem]), root.pem.clone(), Some(&root.pem)),
            ("as far as it goes", join(&[&below, &middle.pem]), other.pem.clone(), Some(&middle.pem)),
            ("by key, not by name alone", direct.clone(), join(&[&namesake.pem, &root.pem]), Some(&root.pem)),
            ("itself", alone.clone(), other.pem.clone(), Some(&alone)),
            ("nowhere", direct.clone(), join(&[&other.pem, &namesake.pem]), None),
            ("not in nonsense", "nonsense".to_owned(), root.pem.clone(), None),
        ] {
            let found = find(&shown, &client_ca);
            assert_eq!(found.as_deref().map(der), expected.map(|text| der(text)), "{what}");
        }
    }
}
