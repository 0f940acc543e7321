//! A certificate of somebody who signs no others.

use base::time::Wall;

use crate::names::{AlternativeNames, Subject};

/// What a certificate may be used for. Purposes come in the order Go writes them in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Usage {
    DigitalSignature,
    ContentCommitment,
    KeyEncipherment,
    DataEncipherment,
    KeyAgreement,
    CertSign,
    CrlSign,
    EncipherOnly,
    DecipherOnly,
    Any,
    ServerAuth,
    ClientAuth,
    CodeSigning,
    EmailProtection,
    IpsecEndSystem,
    IpsecTunnel,
    IpsecUser,
    Timestamping,
    OcspSigning,
    MicrosoftSgc,
    NetscapeSgc,
}

/// A certificate to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub subject: Subject,
    /// DER of the SubjectPublicKeyInfo.
    pub public_key: Vec<u8>,
    pub names: AlternativeNames,
    pub usages: Vec<Usage>,
    pub not_before: Wall,
    pub not_after: Wall,
}

/// Clocks of other machines may be a little behind ours.
pub(crate) const BACKDATE: i64 = 300;

#[must_use]
pub fn backdated(now: Wall) -> Wall {
    Wall::from_secs(now.secs() - BACKDATE)
}

// === impl Usage ===

impl Usage {
    /// The usage that the API gives this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Usage> {
        Some(match name {
            "signing" | "digital signature" => Usage::DigitalSignature,
            "content commitment" => Usage::ContentCommitment,
            "key encipherment" => Usage::KeyEncipherment,
            "data encipherment" => Usage::DataEncipherment,
            "key agreement" => Usage::KeyAgreement,
            "cert sign" => Usage::CertSign,
            "crl sign" => Usage::CrlSign,
            "encipher only" => Usage::EncipherOnly,
            "decipher only" => Usage::DecipherOnly,
            "any" => Usage::Any,
            "server auth" => Usage::ServerAuth,
            "client auth" => Usage::ClientAuth,
            "code signing" => Usage::CodeSigning,
            "email protection" | "s/mime" => Usage::EmailProtection,
            "ipsec end system" => Usage::IpsecEndSystem,
            "ipsec tunnel" => Usage::IpsecTunnel,
            "ipsec user" => Usage::IpsecUser,
            "timestamping" => Usage::Timestamping,
            "ocsp signing" => Usage::OcspSigning,
            "microsoft sgc" => Usage::MicrosoftSgc,
            "netscape sgc" => Usage::NetscapeSgc,
            _ => return None,
        })
    }

    /// Its place in the bit string of keyUsage.
    pub(crate) fn bit(self) -> Option<u32> {
        Some(match self {
            Usage::DigitalSignature => 0,
            Usage::ContentCommitment => 1,
            Usage::KeyEncipherment => 2,
            Usage::DataEncipherment => 3,
            Usage::KeyAgreement => 4,
            Usage::CertSign => 5,
            Usage::CrlSign => 6,
            Usage::EncipherOnly => 7,
            Usage::DecipherOnly => 8,
            _ => return None,
        })
    }

    /// Its identifier among the purposes of extKeyUsage.
    pub(crate) fn purpose(self) -> Option<&'static [u64]> {
        Some(match self {
            Usage::Any => &[2, 5, 29, 37, 0],
            Usage::ServerAuth => &[1, 3, 6, 1, 5, 5, 7, 3, 1],
            Usage::ClientAuth => &[1, 3, 6, 1, 5, 5, 7, 3, 2],
            Usage::CodeSigning => &[1, 3, 6, 1, 5, 5, 7, 3, 3],
            Usage::EmailProtection => &[1, 3, 6, 1, 5, 5, 7, 3, 4],
            Usage::IpsecEndSystem => &[1, 3, 6, 1, 5, 5, 7, 3, 5],
            Usage::IpsecTunnel => &[1, 3, 6, 1, 5, 5, 7, 3, 6],
            Usage::IpsecUser => &[1, 3, 6, 1, 5, 5, 7, 3, 7],
            Usage::Timestamping => &[1, 3, 6, 1, 5, 5, 7, 3, 8],
            Usage::OcspSigning => &[1, 3, 6, 1, 5, 5, 7, 3, 9],
            Usage::MicrosoftSgc => &[1, 3, 6, 1, 4, 1, 311, 10, 3, 3],
            Usage::NetscapeSgc => &[2, 16, 840, 1, 113_730, 4, 1],
            _ => return None,
        })
    }
}
