//! A request as the handlers get it: who sent it, over which connection, and what it asks for.

use std::net::SocketAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, header};
use serve::Connection;
use tokio::sync::Notify;

use super::accept::{self, Accepted, Format};
use crate::auth::authn;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::asked::{Listing, Query};
use apiserver_core::request::Attributes;

/// A request, told apart.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) head: Parts,
    pub(crate) query: Query,
    pub(crate) attributes: Attributes,
    pub(crate) listing: Option<Listing>,
    pub(crate) fault: Option<ApiStatus>,
    pub(crate) peer: Peer,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) shown: Arc<authn::Peer>,
    /// Told when the client may stop reading for as long as it likes.
    pub(crate) may_pause: Arc<Notify>,
    /// Told who it is.
    pub(crate) connection: Connection,
}

// === impl Asking ===

impl Asking {
    /// Whether the body is somebody else's, who takes it as it comes.
    pub(crate) fn leads_on(&self) -> bool {
        let subresource = self.attributes.resource.as_ref().map(|r| r.subresource.as_str());
        matches!(subresource, Some("log" | "exec" | "attach" | "portforward" | "proxy"))
    }
}

/// The form of the answer a request for a resource wants, among those there are of it.
pub(crate) fn accepted(headers: &HeaderMap, offered: &[&str]) -> Result<Accepted, ApiStatus> {
    let header = header_text(headers, header::ACCEPT);
    accept::negotiate(header, offered).ok_or_else(|| ApiStatus::not_acceptable(offered))
}

/// The same where only whole objects are given. A Table of what has no columns is not to be had.
pub(crate) fn accepted_whole(headers: &HeaderMap) -> Result<Format, ApiStatus> {
    let whole = accept::negotiate_whole(header_text(headers, header::ACCEPT), accept::OFFERED);
    whole.ok_or_else(|| ApiStatus::not_acceptable(accept::OFFERED))
}

pub(crate) fn header_text(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
}
