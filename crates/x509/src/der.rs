//! The few DER shapes a certificate is made of. Writing only: what others send is read by `x509-parser`.

use std::net::IpAddr;

pub const SEQUENCE: u8 = 0x30;
pub const SET: u8 = 0x31;
pub const BOOLEAN: u8 = 0x01;
pub const INTEGER: u8 = 0x02;
pub const OCTET_STRING: u8 = 0x04;
pub const NULL: u8 = 0x05;
pub const UTF8_STRING: u8 = 0x0c;
pub const PRINTABLE_STRING: u8 = 0x13;
pub const IA5_STRING: u8 = 0x16;
const BIT_STRING: u8 = 0x03;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// One value: tag, length, content.
pub fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len();
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let from = bytes.iter().position(|b| *b != 0).unwrap_or(bytes.len() - 1);
        out.push(0x80 | (bytes.len() - from) as u8);
        out.extend_from_slice(&bytes[from..]);
    }
    out.extend_from_slice(content);
    out
}

pub fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    value(SEQUENCE, &parts.concat())
}

/// A positive INTEGER from big-endian bytes.
pub fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let trimmed = &bytes[bytes.iter().position(|b| *b != 0).unwrap_or(bytes.len())..];
    match trimmed.first() {
        None => value(INTEGER, &[0]),
        Some(first) if *first >= 0x80 => value(INTEGER, &[&[0], trimmed].concat()),
        Some(_) => value(INTEGER, trimmed),
    }
}

pub fn oid(arcs: &[u64]) -> Vec<u8> {
    let mut content = Vec::new();
    if let [first, second, rest @ ..] = arcs {
        push_base128(&mut content, first * 40 + second);
        rest.iter().for_each(|arc| push_base128(&mut content, *arc));
    }
    value(OBJECT_IDENTIFIER, &content)
}

pub fn bits(unused: u8, content: &[u8]) -> Vec<u8> {
    value(BIT_STRING, &[&[unused], content].concat())
}

/// RFC 5280: two-digit years until 2049, four digits after.
pub fn time(at: jiff::Timestamp) -> Vec<u8> {
    let civil = at.to_zoned(jiff::tz::TimeZone::UTC).datetime();
    let rest = format!(
        "{:02}{:02}{:02}{:02}{:02}Z",
        civil.month(),
        civil.day(),
        civil.hour(),
        civil.minute(),
        civil.second()
    );
    match civil.year() {
        year @ 1950..2050 => value(UTC_TIME, format!("{:02}{rest}", year % 100).as_bytes()),
        year => value(GENERALIZED_TIME, format!("{year:04}{rest}").as_bytes()),
    }
}

/// The octets of an address in a subject alternative name.
pub fn address(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn push_base128(out: &mut Vec<u8>, mut arc: u64) {
    let mut reversed = vec![(arc & 0x7f) as u8];
    arc >>= 7;
    while arc > 0 {
        reversed.push(0x80 | (arc & 0x7f) as u8);
        arc >>= 7;
    }
    out.extend(reversed.into_iter().rev());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_oids_and_integers_have_their_shortest_form() {
        assert_eq!(value(OCTET_STRING, &[7; 3]), [4, 3, 7, 7, 7]);
        assert_eq!(value(OCTET_STRING, &[0; 200])[..3], [4, 0x81, 200]);
        assert_eq!(value(OCTET_STRING, &[0; 300])[..4], [4, 0x82, 1, 44]);
        assert_eq!(oid(&[1, 2, 840, 10045, 4, 3, 2]), [6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]);
        assert_eq!(unsigned(&[0, 0, 0x80]), [2, 2, 0, 0x80]);
        assert_eq!(unsigned(&[0]), [2, 1, 0]);
    }

    #[test]
    fn times_change_form_in_2050() {
        let at = |s: &str| s.parse::<jiff::Timestamp>().map(time);
        assert_eq!(at("2049-12-31T23:59:59Z").ok().as_deref(), Some(&b"\x17\x0d491231235959Z"[..]));
        assert_eq!(at("2050-01-01T00:00:00Z").ok().as_deref(), Some(&b"\x18\x0f20500101000000Z"[..]));
    }
}
