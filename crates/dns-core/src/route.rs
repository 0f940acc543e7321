//! Whom a question is for, and what is refused before anybody is asked.

use domain::base::Rtype;
use domain::base::iana::{Class, Rcode};

use crate::corefile::{Corefile, Forward, Server};
use crate::message::Answer;
use crate::name::Name;
use crate::query::Query;

/// The server whose zone is nearest to the name, and that zone.
#[must_use]
pub fn server<'a>(file: &'a Corefile, name: &Name) -> Option<(&'a Server, &'a Name)> {
    let all = file.servers.iter().flat_map(|server| server.zones.iter().map(move |zone| (server, zone)));
    all.filter(|(_, zone)| name.ends_with(zone)).max_by_key(|(_, zone)| zone.label_count())
}

/// The way out for a name.
#[must_use]
pub fn forward<'a>(server: &'a Server, name: &Name) -> Option<(usize, &'a Forward)> {
    let is_meant = |forward: &Forward| {
        name.ends_with(&forward.from) && !forward.except.iter().any(|zone| name.ends_with(zone))
    };
    let meant = server.forward.iter().enumerate().filter(|(_, forward)| is_meant(forward));
    meant.max_by_key(|(_, forward)| forward.from.label_count())
}

/// What is answered without looking: other classes, transfers of zones, versions of EDNS that are not known.
#[must_use]
pub fn refusal(query: &Query) -> Option<Answer> {
    if query.edns.is_some_and(|edns| edns.version != 0) {
        // The code beside it is written with OPT.
        return Some(Answer::new(Rcode::NOERROR));
    }
    let is_refused = query.class != Class::IN || matches!(query.rtype, Rtype::AXFR | Rtype::IXFR);
    is_refused.then(|| Answer::new(Rcode::REFUSED))
}
