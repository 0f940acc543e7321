//! Certificate signing requests that nobody needs any more.

use std::time::Duration;

use base::time::{Now, Wall};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::conditions;
use crate::controller::{Controller, Key, Retry, Row, Watch};
use crate::object::{Object, wall};
use crate::plan::{Act, Plan, Step};
use crate::resource::CERTIFICATE_SIGNING_REQUESTS;
use crate::view::View;

pub(crate) const CSR_CLEANER: Row = Row {
    name: "certificatesigningrequest-cleaner-controller",
    aliases: &["csrcleaner"],
    identity: "certificate-controller",
    event_source: "certificatesigningrequest-cleaner-controller",
    queue: "csrcleaner",
    workers: |_| 1,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[Watch { resource: CERTIFICATE_SIGNING_REQUESTS, keys: |_, _, _| () }],
    reads: &[],
    is_single: true,
    make: |_| Box::new(Cleaner),
};

const PERIOD: Duration = Duration::from_hours(1);
const DONE: Duration = Duration::from_hours(1);
const OPEN: Duration = Duration::from_hours(24);

#[derive(Debug)]
struct Cleaner;

impl Controller for Cleaner {
    fn reconcile(&mut self, view: &dyn View, _key: &Key, now: Now) -> Plan {
        let all = view.list(CERTIFICATE_SIGNING_REQUESTS, "");
        let over = all.iter().filter(|request| !request.is_deleting() && is_over(request, now.wall));
        Plan::nothing().then(Step::at_once(over.map(|request| Act::delete(request)))).wake(Some(PERIOD))
    }
}

fn is_over(request: &Object, now: Wall) -> bool {
    let status = &request.value()["status"];
    let is_older = |since: Option<Wall>, age: Duration| since.is_some_and(|since| now.since(since) > age);
    let since = |kind: &str| {
        conditions::find(status, kind).and_then(|condition| wall(condition["lastUpdateTime"].as_str()?))
    };
    let certificate = status["certificate"].as_str().filter(|text| !text.is_empty());
    let is_open = status["conditions"].as_array().is_none_or(Vec::is_empty);
    let approved = conditions::find(status, "Approved").is_some();
    is_older(since("Approved"), if certificate.is_some() { DONE } else { OPEN })
        || is_older(since("Denied"), DONE)
        || is_older(since("Failed"), DONE)
        || (is_open && is_older(request.meta.created, OPEN))
        || (approved && certificate.and_then(not_after).is_some_and(|end| end < now))
}

/// When the first certificate of a base64 PEM text ends.
fn not_after(text: &str) -> Option<Wall> {
    let pem = String::from_utf8(STANDARD.decode(text).ok()?).ok()?;
    let body = pem.split_once("-----BEGIN CERTIFICATE-----")?.1.split_once("-----END")?.0;
    let der = STANDARD.decode(body.split_whitespace().collect::<String>()).ok()?;
    // Certificate, TBSCertificate, then version (often), serial number, algorithm, issuer, validity.
    let (_, certificate, _) = element(&der)?;
    let (_, mut rest, _) = element(certificate)?;
    let (tag, _, after) = element(rest)?;
    rest = if tag == 0xa0 { after } else { rest };
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (_, validity, _) = element(rest)?;
    let (_, _, second) = element(validity)?;
    let (tag, time, _) = element(second)?;
    moment(tag, std::str::from_utf8(time).ok()?)
}

/// Tag, content and what follows.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match *length {
        short @ 0..=0x7f => (usize::from(short), rest),
        long => {
            let (digits, rest) =
                rest.split_at_checked(usize::from(long & 0x7f)).filter(|(d, _)| d.len() <= 4)?;
            (digits.iter().fold(0, |sum, digit| (sum << 8) | usize::from(*digit)), rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// UTCTime has two digits of the year, GeneralizedTime four.
fn moment(tag: u8, text: &str) -> Option<Wall> {
    let text = match tag {
        0x17 => format!("{}{text}", if text.get(..2)? < "50" { "20" } else { "19" }),
        _ => text.to_owned(),
    };
    let part = |from: usize, to: usize| text.get(from..to);
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    wall(&format!("{year}-{month}-{day}T{}:{}:{}Z", part(8, 10)?, part(10, 12)?, part(12, 14)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terms::timestamp;
    use crate::testing::{Draft, World, at, draft};

    const HOUR: i64 = 3600;

    fn request(condition: &str, hours: i64, certificate: Option<&str>) -> Draft {
        let draft = draft(CERTIFICATE_SIGNING_REQUESTS, "r").created(0);
        let draft = match condition {
            "" => draft,
            kind => draft.set(
                "/status/conditions",
                json!([{"type": kind, "status": "True", "lastUpdateTime": timestamp(Wall::from_secs(hours * HOUR))}]),
            ),
        };
        certificate.map_or(draft.clone(), |text| draft.set("/status/certificate", json!(text)))
    }

    /// As much of a certificate as is looked at, valid until a time.
    fn certificate(until: &str) -> String {
        let one =
            |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).unwrap_or(0)], content].concat();
        let validity = one(0x30, &[one(0x17, b"700101000000Z"), one(0x17, until.as_bytes())].concat());
        let fields = [one(0xa0, &[2, 1, 2]), one(2, &[1]), one(0x30, &[]), one(0x30, &[]), validity].concat();
        let der = one(0x30, &one(0x30, &fields));
        let pem =
            format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(der));
        STANDARD.encode(pem)
    }

    #[test]
    fn requests_go_when_their_time_is_over() {
        // All are looked at 30 hours after the beginning.
        for (condition, hours, issued, goes) in [
            ("", 0, None, true),
            ("Approved", 5, None, true),
            ("Approved", 7, None, false),
            ("Approved", 28, Some("c"), true),
            ("Approved", 29, Some("c"), false),
            ("Denied", 28, None, true),
            ("Denied", 29, None, false),
            ("Failed", 28, None, true),
            ("Failed", 30, None, false),
        ] {
            let world = World::new([request(condition, hours, issued)]);
            let plan = Cleaner.reconcile(&world.cache, &Key::all(), at(30 * 3600));
            assert_eq!(plan.has_acts(), goes, "{condition} {hours} {issued:?}");
            assert_eq!(plan.wake, Some(PERIOD));
        }
        let young = World::new([request("", 0, None).created(10 * HOUR)]);
        assert!(!Cleaner.reconcile(&young.cache, &Key::all(), at(30 * 3600)).has_acts());
    }

    #[test]
    fn a_request_whose_certificate_has_ended_goes_at_once() {
        for (until, goes) in [("700102000000Z", true), ("700103000000Z", false), ("nonsense", false)] {
            let world = World::new([request("Approved", 30, Some(&certificate(until)))]);
            let plan = Cleaner.reconcile(&world.cache, &Key::all(), at(30 * 3600));
            assert_eq!(plan.has_acts(), goes, "{until}");
        }
        for odd in ["", "AAAA", "LS0t"] {
            assert_eq!(not_after(odd), None);
        }
    }
}
