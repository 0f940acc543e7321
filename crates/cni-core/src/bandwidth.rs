//! `bandwidth`: how much a container may send and receive.

use sha2::{Digest, Sha512};

use crate::error::CniError;
use crate::fields::Fields;
use crate::request::Request;

/// How long a packet may wait.
const LATENCY_MS: u64 = 25;
/// The kernel counts bytes in 32 bits.
const BURST_MOST: u64 = (u32::MAX as u64 - 1) * 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// What the container receives.
    pub ingress: Option<Limit>,
    /// What it sends.
    pub egress: Option<Limit>,
}

/// In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// A second.
    pub rate: u64,
    /// At once.
    pub burst: u32,
    /// May wait.
    pub queue: u32,
}

// === impl Bandwidth ===

impl Bandwidth {
    /// What the configuration says itself counts before what the caller asks.
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let fields = request.fields();
        let keys = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
        if keys.iter().any(|key| fields.get(key).is_some()) {
            return Self::of(&fields);
        }
        let Some(runtime) = request.runtime()? else { return Ok(Self::default()) };
        runtime.fields("bandwidth")?.map_or(Ok(Self::default()), |asked| Self::of(&asked))
    }

    fn of(fields: &Fields<'_>) -> Result<Self, CniError> {
        Ok(Self {
            ingress: limit(fields, "ingressRate", "ingressBurst")?,
            egress: limit(fields, "egressRate", "egressBurst")?,
        })
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn limit(fields: &Fields<'_>, rate: &str, burst: &str) -> Result<Option<Limit>, CniError> {
    let bits = |key: &str, most: u64| Ok::<_, CniError>(fields.number(key, 0..=most)?.unwrap_or(0));
    let both = (bits(rate, u64::MAX)?, bits(burst, BURST_MOST)?);
    match both {
        (0, 0) => Ok(None),
        (0, _) => Err(CniError::field(&fields.path(rate), format!("it is missing, and {burst} is there"))),
        (_, 0) => Err(CniError::field(&fields.path(burst), format!("it is missing, and {rate} is there"))),
        (1..8, _) => Err(CniError::field(&fields.path(rate), "it is less than a byte a second")),
        (_, 1..8) => Err(CniError::field(&fields.path(burst), "it is less than a byte")),
        (rate, burst) => Ok(Some(Limit::of(rate / 8, burst / 8))),
    }
}

/// The device that a container's packets wait in, by the name that upstream's plugin gives it, so that either can take it away.
#[must_use]
pub fn device(network: &str, container: &str) -> String {
    let hash = Sha512::digest(format!("{network}{container}"));
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("bwp{}", &hex[..12])
}

// === impl Limit ===

impl Limit {
    fn of(rate: u64, burst: u64) -> Self {
        let word = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let waiting = rate / 1000 * LATENCY_MS + rate % 1000 * LATENCY_MS / 1000;
        Self { rate, burst: word(burst), queue: word(waiting.saturating_add(burst)) }
    }
}
