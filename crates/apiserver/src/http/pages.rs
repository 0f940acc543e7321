//! Pages that a Pod, a Service or a node shows through us: their links are made to lead back through us.
//!
//! Upstream's rule: a link to the page's own host with an absolute path gets our path before its own; a link elsewhere, or
//! a relative one, stays. Pages are changed as they pass, so that a long one costs no memory.

use std::io::{self, Write};

use bytes::{Buf, Bytes};
use flate2::Compression;
use flate2::write::{DeflateDecoder, DeflateEncoder, GzDecoder, GzEncoder};
use futures_util::stream;
use http::{HeaderValue, Method, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use super::answer::{Answer, Body, Broken};
use super::html::Scanner;

/// Bytes of a page that are taken at once: what a hostile page can unpack to is bounded with it.
const PIECE: usize = 4096;

/// Where pages appear, and by which names they know themselves.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    /// The path of ours that leads to their root.
    entrance: String,
    /// `host:port` that is dialled.
    dialled: Option<String>,
    /// The name the client called us by.
    called: Option<String>,
}

/// How a body is packed.
enum Coding {
    Plain,
    Gzip(GzDecoder<Vec<u8>>, GzEncoder<Vec<u8>>),
    Deflate(DeflateDecoder<Vec<u8>>, DeflateEncoder<Vec<u8>>),
}

/// A page on its way.
struct Passage {
    pages: Pages,
    body: Body,
    /// What came and was not looked at yet.
    waiting: Bytes,
    scanner: Scanner,
    coding: Coding,
    over: bool,
}

// === impl Pages ===

impl Pages {
    pub(super) fn new(entrance: &str, [dialled, called]: [Option<String>; 2]) -> Pages {
        Pages { entrance: entrance.to_owned(), dialled, called }
    }

    /// Changes an answer so that a browser stays with us.
    pub(super) fn lead_back(self, method: &Method, mut answer: Answer) -> Answer {
        let headers = answer.headers_mut();
        if let Some(location) = headers.get(header::LOCATION) {
            let moved = location.to_str().ok().and_then(|link| self.lead(link));
            if let Some(moved) = moved.and_then(|link| HeaderValue::from_str(&link).ok()) {
                headers.insert(header::LOCATION, moved);
            }
            return answer;
        }
        let text = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok()).unwrap_or_default();
        let kind = text(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
        let coding = match text(header::CONTENT_ENCODING) {
            _ if kind != "text/html" => return answer,
            "" => Coding::Plain,
            "gzip" => {
                Coding::Gzip(GzDecoder::new(Vec::new()), GzEncoder::new(Vec::new(), Compression::fast()))
            }
            "deflate" => Coding::Deflate(
                DeflateDecoder::new(Vec::new()),
                DeflateEncoder::new(Vec::new(), Compression::fast()),
            ),
            // Nobody here can read it, so its links stay.
            _ => return answer,
        };
        headers.remove(header::CONTENT_LENGTH);
        if method == Method::HEAD {
            return answer;
        }
        answer.map(|body| {
            let scanner = Scanner::default();
            let passage = Passage { pages: self, body, waiting: Bytes::new(), scanner, coding, over: false };
            let frames = stream::unfold(passage, async |mut passage| {
                let piece = passage.next().await?;
                Some((piece.map(Frame::data), passage))
            });
            StreamBody::new(frames).boxed_unsync()
        })
    }

    /// The link that leads to the same place through us; None where it may stay as it is.
    pub(super) fn lead(&self, link: &str) -> Option<String> {
        let (before, tail) = link.split_at(link.find(['?', '#']).unwrap_or(link.len()));
        let (origin, host, path) = split_link(before)?;
        let calls_us = self.called.as_deref() == Some(host) && !host.is_empty();
        if !path.starts_with('/') || !(host.is_empty() || calls_us || self.dialled.as_deref() == Some(host)) {
            return None;
        }
        let origin = if calls_us { origin } else { "" };
        let path = if path.starts_with(&self.entrance) {
            path.to_owned()
        } else {
            clean(&format!("{}{path}", self.entrance))
        };
        let led = format!("{origin}{path}{tail}");
        (led != link).then_some(led)
    }
}

/// Scheme and host as they stand there, the host by itself, and the path. None for what is no address of a place.
fn split_link(link: &str) -> Option<(&str, &str, &str)> {
    let scheme = link.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    let after = scheme.map_or(0, |s| s.len() + 1);
    let Some(authority) = link[after..].strip_prefix("//") else {
        return (after == 0).then_some(("", "", link));
    };
    let (authority, path) = authority.split_at(authority.find('/').unwrap_or(authority.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Some((&link[..link.len() - path.len()], host, path))
}

/// A path without empty steps, without `.` and `..`; a slash at its end stays.
fn clean(path: &str) -> String {
    let mut steps: Vec<&str> = Vec::new();
    for step in path.split('/') {
        match step {
            "" | "." => {}
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    let end = if path.ends_with('/') && !steps.is_empty() { "/" } else { "" };
    format!("/{}{end}", steps.join("/"))
}

// === impl Passage ===

impl Passage {
    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        while !self.over {
            let made = if self.waiting.is_empty() {
                match self.body.frame().await {
                    Some(Ok(frame)) => {
                        // Trailers are between the other end and us.
                        self.waiting = frame.into_data().unwrap_or_default();
                        continue;
                    }
                    Some(Err(error)) => Err(io::Error::other(error)),
                    None => {
                        self.over = true;
                        self.finish()
                    }
                }
            } else {
                let piece = self.waiting.split_to(self.waiting.remaining().min(PIECE));
                self.change(&piece)
            };
            match made {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Some(Ok(bytes.into())),
                Err(error) => {
                    self.over = true;
                    return Some(Err(Broken(format!("changing the links of a page: {error}"))));
                }
            }
        }
        None
    }

    fn change(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        let plain = self.coding.unpack(piece)?;
        let mut out = Vec::with_capacity(plain.len() + 64);
        let pages = &self.pages;
        self.scanner.push(&plain, &|link| pages.lead(link), &mut out);
        self.coding.pack(&out)
    }

    fn finish(&mut self) -> io::Result<Vec<u8>> {
        let (plain, pages, mut out) = (self.coding.drain()?, &self.pages, Vec::new());
        self.scanner.push(&plain, &|link| pages.lead(link), &mut out);
        out.extend(self.scanner.finish());
        let mut last = self.coding.pack(&out)?;
        last.extend(std::mem::replace(&mut self.coding, Coding::Plain).end()?);
        Ok(last)
    }
}

// === impl Coding ===

impl Coding {
    fn unpack(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Coding::Plain => Ok(piece.to_vec()),
            Coding::Gzip(decoder, _) => {
                decoder.write_all(piece)?;
                Ok(std::mem::take(decoder.get_mut()))
            }
            Coding::Deflate(decoder, _) => {
                decoder.write_all(piece)?;
                Ok(std::mem::take(decoder.get_mut()))
            }
        }
    }

    /// What the unpacking kept back.
    fn drain(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Coding::Plain => Ok(Vec::new()),
            Coding::Gzip(decoder, _) => {
                decoder.try_finish()?;
                Ok(std::mem::take(decoder.get_mut()))
            }
            Coding::Deflate(decoder, _) => {
                decoder.try_finish()?;
                Ok(std::mem::take(decoder.get_mut()))
            }
        }
    }

    fn pack(&mut self, plain: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Coding::Plain => Ok(plain.to_vec()),
            Coding::Gzip(_, encoder) => {
                encoder.write_all(plain)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
            Coding::Deflate(_, encoder) => {
                encoder.write_all(plain)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
        }
    }

    fn end(self) -> io::Result<Vec<u8>> {
        match self {
            Coding::Plain => Ok(Vec::new()),
            Coding::Gzip(_, encoder) => encoder.finish(),
            Coding::Deflate(_, encoder) => encoder.finish(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Read;

    const ENTRANCE: &str = "/api/v1/namespaces/a/services/s/proxy";

    fn pages() -> Pages {
        Pages::new(ENTRANCE, [Some("10.0.0.9:80".to_owned()), Some("api:6443".to_owned())])
    }

    #[test]
    fn links_to_the_page_itself_lead_back_and_others_stay() {
        let rows = [
            ("/x", Some("/api/v1/namespaces/a/services/s/proxy/x")),
            ("/", Some("/api/v1/namespaces/a/services/s/proxy/")),
            ("/x/?a=/b#/c", Some("/api/v1/namespaces/a/services/s/proxy/x/?a=/b#/c")),
            ("http://10.0.0.9:80/x", Some("/api/v1/namespaces/a/services/s/proxy/x")),
            ("//10.0.0.9:80/x", Some("/api/v1/namespaces/a/services/s/proxy/x")),
            ("https://api:6443/x", Some("https://api:6443/api/v1/namespaces/a/services/s/proxy/x")),
            ("/api/v1/namespaces/a/services/s/proxy/x", None),
            ("x/y", None),
            ("../x", None),
            ("#top", None),
            ("", None),
            ("mailto:me@here", None),
            ("javascript:/x/", None),
            ("http://elsewhere/x", None),
            ("//elsewhere/x", None),
            ("http://10.0.0.9:81/x", None),
        ];
        for (link, led) in rows {
            assert_eq!(pages().lead(link).as_deref(), led, "{link}");
        }
    }

    fn answer(headers: &[(header::HeaderName, &'static str)], body: Vec<u8>) -> Answer {
        let mut answer = super::super::answer::whole(200, "text/html; charset=utf-8", body.into());
        for (name, value) in headers {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }

    async fn body(answer: Answer) -> Vec<u8> {
        answer.into_body().collect().await.unwrap().to_bytes().to_vec()
    }

    #[tokio::test]
    async fn a_redirect_stays_with_us() {
        let moved = answer(&[(header::LOCATION, "/login")], Vec::new());
        let moved = pages().lead_back(&Method::GET, moved);
        assert_eq!(moved.headers()[header::LOCATION], "/api/v1/namespaces/a/services/s/proxy/login");
    }

    #[tokio::test]
    async fn pages_are_changed_however_they_are_packed() {
        let page = format!("<p>{}</p><a href=\"/x\">x</a>", "long ".repeat(3000));
        let wanted = page.replace("\"/x\"", &format!("\"{ENTRANCE}/x\""));
        let plain = pages().lead_back(&Method::GET, answer(&[], page.clone().into_bytes()));
        assert_eq!(body(plain).await, wanted.as_bytes());
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(page.as_bytes()).unwrap();
        let packed = answer(&[(header::CONTENT_ENCODING, "gzip")], gzip.finish().unwrap());
        let packed = body(pages().lead_back(&Method::GET, packed)).await;
        let mut unpacked = String::new();
        flate2::read::GzDecoder::new(&*packed).read_to_string(&mut unpacked).unwrap();
        assert_eq!(unpacked, wanted);
        let mut deflate = DeflateEncoder::new(Vec::new(), Compression::fast());
        deflate.write_all(page.as_bytes()).unwrap();
        let packed = answer(&[(header::CONTENT_ENCODING, "deflate")], deflate.finish().unwrap());
        let packed = body(pages().lead_back(&Method::GET, packed)).await;
        let mut unpacked = String::new();
        flate2::read::DeflateDecoder::new(&*packed).read_to_string(&mut unpacked).unwrap();
        assert_eq!(unpacked, wanted);
    }

    #[tokio::test]
    async fn what_is_no_page_or_cannot_be_read_passes_unchanged() {
        let link = b"<a href=\"/x\">".to_vec();
        let text = answer(&[(header::CONTENT_TYPE, "text/plain")], link.clone());
        assert_eq!(body(pages().lead_back(&Method::GET, text)).await, link);
        let odd = answer(&[(header::CONTENT_ENCODING, "br")], link.clone());
        assert_eq!(body(pages().lead_back(&Method::GET, odd)).await, link);
    }
}
