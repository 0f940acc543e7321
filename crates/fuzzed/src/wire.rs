//! Frames and messages of peers: streaming servers and clients, systemd, the kernel.

use apiserver_core::asked::{self, Query};
use bytes::BytesMut;
use dns_core::message::Answer;
use dns_core::query::Read;
use dns_core::{Rcode, message, query};
use nft::wire::{Attributes, Messages};
use nft::{Author, Generation, Notice};
use streaming::websocket::Role;
use streaming::{spdy as frames, websocket as sockets};
use systemd::bus::wire;

/// SPDY frames of a server and of a client, in one piece and cut into small ones: the same is read.
pub fn spdy(bytes: &[u8]) {
    for decoder in [frames::Decoder::default, frames::Decoder::of_server] {
        let whole = spdy_frames(decoder(), &mut [bytes].into_iter());
        assert_eq!(whole, spdy_frames(decoder(), &mut bytes.chunks(7)));
    }
}

fn spdy_frames(
    mut decoder: frames::Decoder,
    pieces: &mut dyn Iterator<Item = &[u8]>,
) -> (Vec<frames::Frame>, Option<frames::Broken>) {
    let mut found = Vec::new();
    for piece in pieces {
        decoder.buffer().extend_from_slice(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(e) => return (found, Some(e)),
            }
        }
    }
    (found, None)
}

/// WebSocket messages, to a server and to a client, in one piece and cut into small ones.
pub fn websocket(bytes: &[u8]) {
    for role in [Role::Server, Role::Client] {
        let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let mut decoder = sockets::Decoder::new(role);
            let mut found = Vec::new();
            for piece in pieces {
                decoder.buffer().extend_from_slice(piece);
                loop {
                    match decoder.next_message() {
                        Ok(Some(message)) => found.push(message),
                        Ok(None) => break,
                        Err(e) => return (found, Some(e)),
                    }
                }
            }
            (found, None)
        };
        assert_eq!(read(&mut [bytes].into_iter()), read(&mut bytes.chunks(3)));
    }
    let mut out = BytesMut::new();
    sockets::put_binary(&mut out, None, &[bytes]);
    let mut decoder = sockets::Decoder::new(Role::Client);
    decoder.buffer().unsplit(out);
    if let Ok(Some(message)) = decoder.next_message() {
        assert_eq!(message, sockets::Message::Binary(bytes.to_vec().into()));
    }
}

/// A message of the system bus.
pub fn dbus(bytes: &[u8]) {
    if let Some(head) = bytes.first_chunk::<{ wire::HEAD }>() {
        let _ = wire::size(head);
    }
    let Some(message) = wire::Message::read(bytes) else { return };
    let _ = (message.text(), message.object(), message.variant_text());
    let _ = (message.job(), message.truth(), message.large());
}

/// A datagram of the kernel, as an answer and as a notice about nf_tables.
pub fn netlink(bytes: &[u8]) {
    for (header, body) in Messages(bytes) {
        let _ = (Generation::read(header, body), Author::read(header, body), Notice::read(header, body));
        let _ = Attributes(body).flat_map(|a| a.nested()).count();
    }
    for attribute in Attributes(bytes) {
        let _ = (attribute.u8(), attribute.u32(), attribute.u64(), attribute.text());
    }
}

/// A DNS message of a client, and of an upstream. What is written of either is within its limit and can be read.
pub fn dns(bytes: &[u8]) {
    let heard = message::hear(bytes);
    if let Read::Query(query) = query::read(bytes) {
        let limit = query.udp_size();
        let said = Answer::new(Rcode::NXDOMAIN).write(&query, limit);
        assert!(said.len() <= limit && message::hear(&said).is_ok());
        if let Ok(heard) = heard {
            assert!(heard.answer.write(&query, limit).len() <= limit);
        }
    }
}

/// The first line of a request to the API server: `METHOD PATH?QUERY`. What is read of it says the same to whoever allows it and to
/// whoever does it, and no name in it leads elsewhere in the store.
pub fn request(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (method, target) = text.split_once(' ').unwrap_or(("GET", &text));
    let Ok(method) = http::Method::from_bytes(method.as_bytes()) else { return };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let Ok(query) = Query::parse(query) else { return };
    let _ = (
        query.check_timeout(),
        query.write_options("kubectl/v1.36.4"),
        query.delete_options(Default::default()),
    );
    let asked = asked::read(&method, path, &query);
    let Some(resource) = &asked.resource else { return };
    let _ = asked::beyond(path, resource);
    if asked.fault.is_some() {
        return;
    }
    for part in [&resource.namespace, &resource.name] {
        assert!(!part.contains('/') && part != "..", "{part:?} is a path");
    }
    if let Some(listing) = &asked.listing
        && !resource.name.is_empty()
    {
        assert_eq!(listing.options().fields.exact("metadata.name"), Some(resource.name.as_str()));
    }
}
