//! Answers: made here or heard from an upstream, and written for a client.

use base::rng::Rng;
use domain::base::iana::{Class, OptRcode, Rcode};
use domain::base::message_builder::{AdditionalBuilder, StaticCompressor};
use domain::base::name::FlattenInto;
use domain::base::wire::ParseError;
use domain::base::{Message, MessageBuilder, Record as Wire, Rtype, Ttl};
use domain::rdata::{A, Aaaa, Cname, Ns, Ptr, Soa, Srv, Txt, ZoneRecordData};
use std::net::IpAddr;

use crate::name::Name;
use crate::query::{Edns, Query};

pub type Data = ZoneRecordData<Vec<u8>, Name>;
pub type Record = Wire<Name, Data>;

/// What OPT takes without options.
const OPT_SIZE: usize = 11;
/// The most a length of two bytes can say.
pub const TCP_SIZE: usize = 65_535;
/// Records of an upstream's answer that are looked at.
const RECORDS: usize = 4096;

/// What is said to a question, besides the question.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub rcode: Rcode,
    pub is_authoritative: bool,
    /// Somebody cut it already.
    pub is_truncated: bool,
    /// AD: an upstream says that it validated this.
    pub is_validated: bool,
    pub answer: Vec<Record>,
    pub authority: Vec<Record>,
    pub additional: Vec<Record>,
}

/// What an upstream's bytes are.
#[derive(Debug)]
pub struct Heard {
    pub id: u16,
    /// The question it repeats, letter by letter.
    pub question: Option<(Name, Rtype)>,
    pub answer: Answer,
}

/// A record of the usual class.
#[must_use]
pub fn record(owner: &Name, ttl: u32, data: impl Into<Data>) -> Record {
    Wire::new(owner.clone(), Class::IN, Ttl::from_secs(ttl), data.into())
}

/// The same record of another name.
#[must_use]
pub fn renamed(record: &Record, owner: &Name) -> Record {
    Wire::new(owner.clone(), record.class(), record.ttl(), record.data().clone())
}

#[must_use]
pub fn address(owner: &Name, ttl: u32, ip: IpAddr) -> Record {
    match ip {
        IpAddr::V4(ip) => record(owner, ttl, A::new(ip)),
        IpAddr::V6(ip) => record(owner, ttl, Aaaa::new(ip)),
    }
}

#[must_use]
pub fn cname(owner: &Name, ttl: u32, target: Name) -> Record {
    record(owner, ttl, Cname::new(target))
}

#[must_use]
pub fn ptr(owner: &Name, ttl: u32, target: Name) -> Record {
    record(owner, ttl, Ptr::new(target))
}

#[must_use]
pub fn ns(owner: &Name, ttl: u32, target: Name) -> Record {
    record(owner, ttl, Ns::new(target))
}

#[must_use]
pub fn srv(owner: &Name, ttl: u32, weight: u16, port: u16, target: Name) -> Record {
    record(owner, ttl, Srv::new(0, weight, port, target))
}

/// A text of at most 255 bytes; longer ones are cut.
#[must_use]
pub fn txt(owner: &Name, ttl: u32, text: &str) -> Record {
    let text = &text.as_bytes()[..text.len().min(255)];
    record(owner, ttl, Txt::build_from_slice(text).unwrap_or_else(|_| unreachable!("255 bytes fit into TXT")))
}

/// CoreDNS's numbers.
#[must_use]
pub fn soa(zone: &Name, ttl: u32, serial: u32) -> Record {
    let under = |labels: &[&str]| crate::name::join(labels, zone).unwrap_or_else(|| zone.clone());
    let seconds = Ttl::from_secs;
    let data = Soa::new(
        under(&["ns", "dns"]),
        under(&["hostmaster"]),
        serial.into(),
        seconds(7200),
        seconds(1800),
        seconds(86400),
        seconds(ttl),
    );
    record(zone, ttl.min(300), data)
}

/// Reads what an upstream said.
pub fn hear(bytes: &[u8]) -> Result<Heard, ParseError> {
    let message = Message::from_slice(bytes).map_err(|_| ParseError::ShortInput)?;
    let header = message.header();
    if !header.qr() {
        return Err(ParseError::form_error("not an answer"));
    }
    let mut questions = message.question();
    let question = match questions.next() {
        Some(asked) => {
            let asked = asked?;
            Some(((*asked.qname()).flatten_into(), asked.qtype()))
        }
        None => None,
    };
    let (answer, authority, additional) = (message.answer()?, message.authority()?, message.additional()?);
    let mut left = RECORDS;
    let mut collect = |section: domain::base::message::RecordSection<'_, [u8]>| {
        let mut records = Vec::new();
        for record in section {
            let record = record?;
            left = left.checked_sub(1).ok_or(ParseError::form_error("too many records"))?;
            // OPT is between neighbours: what an upstream says there is not for our client.
            if record.rtype() == Rtype::OPT {
                continue;
            }
            if let Some(record) = record.into_record::<ZoneRecordData<_, _>>()? {
                let record: Record = record.flatten_into();
                records.push(record);
            }
        }
        Ok::<_, ParseError>(records)
    };
    let answer = Answer {
        rcode: header.rcode(),
        is_authoritative: header.aa(),
        is_truncated: header.tc(),
        is_validated: header.ad(),
        answer: collect(answer)?,
        authority: collect(authority)?,
        additional: collect(additional)?,
    };
    Ok(Heard { id: header.id(), question, answer })
}

/// A question for an upstream: with our own number, our own case of the name, and the size of datagram that no path cuts.
#[must_use]
pub fn ask(query: &Query, id: u16, name: &Name, size: u16) -> Vec<u8> {
    let mut builder = MessageBuilder::new_vec();
    let header = builder.header_mut();
    header.set_id(id);
    header.set_rd(true);
    header.set_cd(query.checking_disabled);
    let mut builder = builder.question();
    // A vector takes whatever comes.
    let _ = builder.push((name, query.rtype, query.class));
    let mut builder = builder.additional();
    let wants_dnssec = query.wants_dnssec();
    let _ = builder.opt(|opt| {
        opt.set_udp_payload_size(size);
        opt.set_dnssec_ok(wants_dnssec);
        Ok(())
    });
    builder.finish()
}

// === impl Answer ===

impl Answer {
    #[must_use]
    pub fn new(rcode: Rcode) -> Answer {
        Answer {
            rcode,
            is_authoritative: false,
            is_truncated: false,
            is_validated: false,
            answer: Vec::new(),
            authority: Vec::new(),
            additional: Vec::new(),
        }
    }

    /// Of our own zone.
    #[must_use]
    pub fn authoritative(rcode: Rcode) -> Answer {
        Answer { is_authoritative: true, ..Answer::new(rcode) }
    }

    /// The same lifetime for every record, as CoreDNS's cache has it.
    pub fn set_ttl(&mut self, ttl: u32) {
        for record in self.answer.iter_mut().chain(&mut self.authority).chain(&mut self.additional) {
            record.set_ttl(Ttl::from_secs(ttl));
        }
    }

    /// Aliases first, then addresses and mail servers in an order of their own; so no client always takes the same one.
    pub fn shuffle(&mut self, seed: u64) {
        let mut rng = Rng::new(seed);
        for records in [&mut self.answer, &mut self.additional] {
            records.sort_by_key(|record| match record.rtype() {
                Rtype::CNAME => 0,
                Rtype::A | Rtype::AAAA | Rtype::MX => 2,
                _ => 1,
            });
            let first = records.partition_point(|r| !matches!(r.rtype(), Rtype::A | Rtype::AAAA | Rtype::MX));
            let moved = &mut records[first..];
            for at in (1..moved.len()).rev() {
                moved.swap(at, usize::try_from(rng.below(at as u64 + 1)).unwrap_or(0));
            }
        }
    }

    /// At most `limit` bytes for the client; what does not fit is cut, and TC says so where it was part of the answer.
    #[must_use]
    pub fn write(&self, query: &Query, limit: usize) -> Vec<u8> {
        let room = query.edns.map_or(0, |_| OPT_SIZE);
        // A vector takes whatever comes.
        let Ok(mut builder) = MessageBuilder::from_target(StaticCompressor::new(Vec::with_capacity(128)));
        // The builder's limit is the first size that is too much.
        builder.set_push_limit((limit + 1).saturating_sub(room));
        let header = builder.header_mut();
        header.set_id(query.id);
        header.set_qr(true);
        header.set_rd(query.wants_recursion);
        header.set_ra(true);
        header.set_cd(query.checking_disabled);
        header.set_aa(self.is_authoritative);
        header.set_ad(self.is_validated);
        header.set_tc(self.is_truncated);
        header.set_rcode(self.rcode);
        let mut builder = builder.question();
        let mut is_cut = builder.push((&query.name, query.rtype, query.class)).is_err();
        let mut builder = builder.answer();
        is_cut |= self.answer.iter().any(|record| builder.push(record).is_err());
        if is_cut {
            builder.header_mut().set_tc(true);
        }
        let mut builder = builder.authority();
        let _ = is_cut || self.authority.iter().any(|record| builder.push(record).is_err());
        let mut builder = builder.additional();
        let _ = is_cut || self.additional.iter().any(|record| builder.push(record).is_err());
        if let Some(edns) = query.edns {
            builder.clear_push_limit();
            push_opt(&mut builder, edns, self.rcode);
        }
        builder.finish().into_target()
    }
}

/// Echoes what the client said of itself. A version that we do not know is told so, and ours is 0.
fn push_opt(builder: &mut AdditionalBuilder<StaticCompressor<Vec<u8>>>, edns: Edns, rcode: Rcode) {
    let _ = builder.opt(|opt| {
        opt.set_udp_payload_size(edns.size);
        opt.set_dnssec_ok(edns.wants_dnssec);
        opt.set_rcode(match edns.version {
            0 => OptRcode::from_rcode(rcode),
            _ => OptRcode::BADVERS,
        });
        Ok(())
    });
}
