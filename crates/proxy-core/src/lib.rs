//! What kube-proxy decides, as pure functions.
//!
//! Services, EndpointSlices, the Node and ServiceCIDRs go in, one neutral [`rules::RuleSet`] per address
//! family comes out, and with it a [`rules::Delta`] from the one before. Nothing here knows how a kernel
//! is told: a backend renders the rules, or the delta, in its own language.
//!
//! * [`objects`]: what matters of the API objects, merged and tracked ([`objects::Cluster`]).
//! * [`rules`]: the rule set, how it is compiled ([`rules::Rulebook`]) and compared.
//! * [`iptables`]: the rules as iptables-restore reads them, and a tracer over that.
//! * [`ipvs`]: the rules as virtual servers, ipsets and a fixed script, and a tracer over that.
//! * [`nft`]: the rules in the language of nf_tables, and a tracer over that.
//! * [`trace`]: the fate of one packet under a rule set.
//! * [`doctor`]: what is wrong with a Service, and what to do about it.
//! * [`flows`]: which tracked connections no longer have anywhere to go.

pub mod doctor;
pub mod flows;
pub mod iptables;
pub mod ipvs;
pub mod nft;
pub mod objects;
pub mod rules;
pub mod trace;
