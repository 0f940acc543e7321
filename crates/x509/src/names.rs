//! Who a certificate speaks for: its subject and its alternative names, always written from text that was checked.

use std::net::IpAddr;

use crate::der;

/// What a distinguished name may say: what Go's `pkix.Name` knows, mail addresses and domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    CommonName,
    SerialNumber,
    Country,
    Locality,
    Province,
    StreetAddress,
    Organization,
    OrganizationalUnit,
    PostalCode,
    Email,
    DomainComponent,
}

/// The DER of a distinguished name that we wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject(Vec<u8>);

/// Names a certificate is good for besides its subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlternativeNames {
    pub dns: Vec<String>,
    pub ips: Vec<IpAddr>,
    pub emails: Vec<String>,
    pub uris: Vec<String>,
}

const IDS: &[(Attribute, &[u64])] = &[
    (Attribute::CommonName, &[2, 5, 4, 3]),
    (Attribute::SerialNumber, &[2, 5, 4, 5]),
    (Attribute::Country, &[2, 5, 4, 6]),
    (Attribute::Locality, &[2, 5, 4, 7]),
    (Attribute::Province, &[2, 5, 4, 8]),
    (Attribute::StreetAddress, &[2, 5, 4, 9]),
    (Attribute::Organization, &[2, 5, 4, 10]),
    (Attribute::OrganizationalUnit, &[2, 5, 4, 11]),
    (Attribute::PostalCode, &[2, 5, 4, 17]),
    (Attribute::Email, &[1, 2, 840, 113549, 1, 9, 1]),
    (Attribute::DomainComponent, &[0, 9, 2342, 19200300, 100, 1, 25]),
];

// === impl Attribute ===

impl Attribute {
    /// By the dotted form of its object identifier.
    #[must_use]
    pub fn from_id(id: &str) -> Option<Attribute> {
        let dotted = |arcs: &[u64]| arcs.iter().map(u64::to_string).collect::<Vec<_>>().join(".");
        IDS.iter().find(|(_, arcs)| dotted(arcs) == id).map(|(attribute, _)| *attribute)
    }

    fn to_der(self, text: &str) -> Vec<u8> {
        let arcs = IDS.iter().find(|(attribute, _)| *attribute == self).map_or(&[][..], |(_, arcs)| arcs);
        // RFC 5280 wants these two and these two otherwise; everything else is UTF-8.
        let tag = match self {
            Attribute::Country | Attribute::SerialNumber if is_printable(text) => der::PRINTABLE_STRING,
            Attribute::Email | Attribute::DomainComponent if text.is_ascii() => der::IA5_STRING,
            _ => der::UTF8_STRING,
        };
        der::value(der::SET, &der::sequence(&[&der::oid(arcs), &der::value(tag, text.as_bytes())]))
    }
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&b))
}

// === impl Subject ===

impl Subject {
    /// `CN=name, O=group, O=group…`: how Kubernetes reads a user and its groups.
    #[must_use]
    pub fn new(common_name: &str, organizations: &[&str]) -> Subject {
        let groups = organizations.iter().map(|o| (Attribute::Organization, *o));
        Subject::of(groups.chain([(Attribute::CommonName, common_name)]))
    }

    /// All attributes in this order, each by itself.
    #[must_use]
    pub fn of<'t>(attributes: impl IntoIterator<Item = (Attribute, &'t str)>) -> Subject {
        let all: Vec<u8> = attributes.into_iter().flat_map(|(kind, text)| kind.to_der(text)).collect();
        Subject(der::value(der::SEQUENCE, &all))
    }

    /// DER of the Name.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.0
    }
}

// === impl AlternativeNames ===

impl AlternativeNames {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dns.is_empty() && self.ips.is_empty() && self.emails.is_empty() && self.uris.is_empty()
    }

    pub fn to_der(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // Context tags of GeneralName: rfc822Name 1, dNSName 2, uniformResourceIdentifier 6, iPAddress 7.
        self.emails.iter().for_each(|e| out.extend(der::value(0x81, e.as_bytes())));
        self.dns.iter().for_each(|d| out.extend(der::value(0x82, d.as_bytes())));
        self.uris.iter().for_each(|u| out.extend(der::value(0x86, u.as_bytes())));
        self.ips.iter().for_each(|ip| out.extend(der::value(0x87, &der::address(*ip))));
        der::value(der::SEQUENCE, &out)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use x509_parser::prelude::FromDer;

    #[test]
    fn every_attribute_is_written_as_it_is_read() {
        let texts = |n: usize| format!("v{n}");
        let all: Vec<(Attribute, String)> =
            IDS.iter().enumerate().map(|(n, (attribute, _))| (*attribute, texts(n))).collect();
        let subject = Subject::of(all.iter().map(|(a, t)| (*a, t.as_str())));
        let (_, name) = x509_parser::x509::X509Name::from_der(&subject.0).unwrap();
        let read: Vec<(Attribute, String)> = name
            .iter_attributes()
            .map(|a| {
                (Attribute::from_id(&a.attr_type().to_id_string()).unwrap(), a.as_str().unwrap().to_owned())
            })
            .collect();
        assert_eq!(read, all);
        assert_eq!(Attribute::from_id("1.3.6.1.4.1.57683.2"), None);
    }
}
