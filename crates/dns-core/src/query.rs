//! A client's message becomes a question, or a refusal.

use domain::base::iana::{Class, Opcode, Rcode};
use domain::base::name::FlattenInto;
use domain::base::opt::{Opt, OptRecord};
use domain::base::{Message, Rtype};

use crate::name::Name;

/// What a client without EDNS takes.
pub const PLAIN_SIZE: u16 = 512;
/// Of a DNS message's head.
const HEAD: usize = 12;

/// One question, and how the answer is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    pub id: u16,
    pub wants_recursion: bool,
    /// CD: answers that do not validate are welcome.
    pub checking_disabled: bool,
    /// As it was written: answers repeat it letter by letter.
    pub name: Name,
    pub rtype: Rtype,
    pub class: Class,
    pub edns: Option<Edns>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edns {
    pub size: u16,
    pub wants_dnssec: bool,
    pub version: u8,
}

/// What became of a client's bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    Query(Query),
    /// Not understood: this is the answer.
    Refused(Vec<u8>),
    /// Not even that: an answer to an answer would go round in circles.
    Ignored,
}

/// Reads what a client sent.
#[must_use]
pub fn read(bytes: &[u8]) -> Read {
    let Ok(message) = Message::from_slice(bytes) else { return Read::Ignored };
    let (header, counts) = (message.header(), message.header_counts());
    if header.qr() {
        return Read::Ignored;
    }
    if header.opcode() != Opcode::QUERY {
        return Read::Refused(refuse(bytes, Rcode::NOTIMP));
    }
    // More than these have no meaning in a question, and cost time to look at.
    if counts.qdcount() != 1 || counts.ancount() > 1 || counts.nscount() > 1 || counts.arcount() > 2 {
        return Read::Refused(refuse(bytes, Rcode::FORMERR));
    }
    match question(message) {
        Some(query) => Read::Query(query),
        None => Read::Refused(refuse(bytes, Rcode::FORMERR)),
    }
}

fn question(message: &Message<[u8]>) -> Option<Query> {
    let asked = message.question().next()?.ok()?;
    let mut edns = None;
    for record in message.additional().ok()? {
        let record = record.ok()?;
        if record.rtype() != Rtype::OPT {
            continue;
        }
        let record = OptRecord::from_record(record.into_record::<Opt<_>>().ok()??);
        let found = Edns {
            size: record.udp_payload_size().max(PLAIN_SIZE),
            wants_dnssec: record.dnssec_ok(),
            version: record.version(),
        };
        if edns.replace(found).is_some() {
            return None;
        }
    }
    let header = message.header();
    Some(Query {
        id: header.id(),
        wants_recursion: header.rd(),
        checking_disabled: header.cd(),
        name: (*asked.qname()).flatten_into(),
        rtype: asked.qtype(),
        class: asked.qclass(),
        edns,
    })
}

/// A head that says no, to whatever begins with a head.
fn refuse(bytes: &[u8], rcode: Rcode) -> Vec<u8> {
    let mut reply = bytes.get(..HEAD).map(<[u8]>::to_vec).unwrap_or_default();
    reply.resize(HEAD, 0);
    // QR, the same operation and RD; nothing else.
    reply[2] = 0x80 | (reply[2] & 0x79);
    reply[3] = rcode.to_int();
    reply[4..].fill(0);
    reply
}

// === impl Query ===

impl Query {
    /// How large an answer over UDP may be.
    #[must_use]
    pub fn udp_size(&self) -> usize {
        usize::from(self.edns.map_or(PLAIN_SIZE, |edns| edns.size))
    }

    #[must_use]
    pub fn wants_dnssec(&self) -> bool {
        self.edns.is_some_and(|edns| edns.wants_dnssec)
    }

    /// The same question about another name.
    #[must_use]
    pub fn about(&self, name: Name) -> Query {
        Query { name, ..self.clone() }
    }
}
