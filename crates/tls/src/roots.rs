//! Whom the machine trusts.

use std::fs;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Where distributions keep the certificates the machine trusts.
const PLACES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The roots of the machine; empty where it has none. It reads a file.
#[must_use]
pub fn system_roots() -> RootCertStore {
    let read = |place: &str| fs::read(place).ok();
    let pem = PLACES.into_iter().find_map(read).unwrap_or_default();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
    roots
}
