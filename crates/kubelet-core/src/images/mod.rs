//! Images, as far as they can be decided without touching one: names, who may use which credential,
//! what a pull record proves, how fast pulls may follow each other.

mod collect;
mod docker_config;
mod keyring;
mod policy;
mod record;

pub use api::image::{BadName, repository, trim, with_default_tag};
pub use collect::{ImagePolicy, ImageUse, Present, Unused, too_little_freed};
pub(crate) use docker_config::decode_base64;
pub use docker_config::{BadDockerConfig, Login, Logins, read_config_json, read_dockercfg};
pub use keyring::{Keyring, matches_url, registry_of};
pub use policy::{BadPattern, PullPolicy, TokenBucket, Verification};
pub use record::{
    Credentials, PullIntent, PulledRecord, SecretRef, ServiceAccountRef, accounts_of, must_pull,
};
