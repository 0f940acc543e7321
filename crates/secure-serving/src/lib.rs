//! HTTPS ports of agents: nobody is answered who is not known and allowed.
//!
//! Who asks is found out by client certificates and by asking the API server (TokenReview); whether that one may, by asking it too
//! (SubjectAccessReview): what upstream calls delegated authentication and authorization.
//!
//! * [`Guard`]: judges; [`Reviews`] is what it needs of an API server, [`ApiReviews`] the real one.
//! * [`tls`]: the certificate that is shown, and the rules of the handshake.
//! * [`listener`]: TLS and HTTP/1.1 for whatever answers. The kubelet's port 10250 is served by it.
//! * [`pages`]: the port of an agent that has only pages: health checks, metrics, configuration. [`Checks`] are its health checks.

mod authn;
pub mod delegated;
mod files;
mod guard;
pub mod health;
pub mod listener;
pub mod pages;
mod remember;
mod reviews;
pub mod tls;

pub use self::tls::{CertSource, Identity, Issued, TlsError, TlsRules, certified_key, server_config};
pub use authn::{Peer, Unauthorized, User};
pub use guard::{Access, AccessRules, ClientCa, Guard, GuardRules, ReviewError, Reviews};
pub use health::{Check, Checks};
pub use listener::{Open, OpenError, Rules, Times, open};
pub use reviews::ApiReviews;
