//! Lists: at one revision, page by page, whatever changes meanwhile.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Registry, from_entry};
use crate::store_errors;
use apiserver_core::api_status::{ApiStatus, Cause};
use apiserver_core::document::Document;
use apiserver_core::options::{ListOptions, VersionMatch};
use apiserver_core::selection::Selection;
use store::{ReadError, Store};

/// Objects read from the store at once: enough to be quick, few enough to hold in memory for every slow reader.
const PAGE: usize = 500;
const PAGE_BYTES: usize = 1 << 20;
/// The same for the objects a watch begins with: whoever never reads it holds one page for as long as it stands.
const WATCH_PAGE_BYTES: usize = 16 << 10;

/// A list in progress. A clone goes on by itself, from the same place in the same revision.
#[derive(Clone, Debug)]
pub struct Lister {
    store: Store,
    selection: Selection,
    page_bytes: usize,
    /// Every page shows the store as of this revision.
    pub revision: u64,
    after: Option<Arc<str>>,
    /// How many more the client wants.
    wanted: Option<usize>,
    /// The page that was read to learn the revision.
    first: Option<Vec<Document>>,
    more: bool,
    remaining: Option<u64>,
}

/// What remains to be said when the pages are through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    pub continue_token: Option<String>,
    pub remaining: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";

impl Registry {
    /// Starts a list.
    pub async fn list(&self, selection: Selection, options: &ListOptions) -> Result<Lister, ApiStatus> {
        self.list_by(PAGE_BYTES, selection, options).await
    }

    /// Starts the list that a watch begins with.
    pub(super) async fn list_for_watch(&self, selection: Selection) -> Result<Lister, ApiStatus> {
        self.list_by(WATCH_PAGE_BYTES, selection, &ListOptions::default()).await
    }

    async fn list_by(
        &self,
        page_bytes: usize,
        selection: Selection,
        options: &ListOptions,
    ) -> Result<Lister, ApiStatus> {
        let (at, after) = self.starting_point(&selection, options).await?;
        let mut lister = Lister {
            store: self.store().clone(),
            selection,
            page_bytes,
            revision: 0,
            after,
            wanted: options.limit,
            first: None,
            more: true,
            remaining: None,
        };
        let page = lister.read(at).await.map_err(|e| match (e, &options.continue_token) {
            (ReadError::Compacted(_), Some(_)) => lister.expired(),
            (error, _) => refuse(error),
        })?;
        lister.first = Some(page);
        Ok(lister)
    }

    /// The whole of a small list.
    pub async fn list_all(&self, selection: Selection) -> Result<(Vec<Document>, u64), ApiStatus> {
        let mut lister = self.list(selection, &ListOptions::default()).await?;
        let mut out = Vec::new();
        while let Some(page) = lister.next_page().await? {
            out.extend(page);
        }
        Ok((out, lister.revision))
    }

    /// The revision to read at (None is the latest) and the key to go on after.
    async fn starting_point(
        &self,
        selection: &Selection,
        options: &ListOptions,
    ) -> Result<(Option<u64>, Option<Arc<str>>), ApiStatus> {
        check_version_match(options)?;
        if let Some(text) = &options.continue_token {
            let token = Token::decode(text)?;
            if options.version.is_some_and(|v| v != 0) {
                let why = "specifying resource version is not allowed when using continue";
                return Err(ApiStatus::bad_request(why));
            }
            let after = format!("{}{}", selection.prefix(), token.start.trim_end_matches('\0'));
            return Ok((u64::try_from(token.rv).ok().filter(|rv| *rv > 0), Some(after.into())));
        }
        let exact = match options.version_match {
            Some(VersionMatch::Exact) => true,
            Some(VersionMatch::NotOlderThan) => false,
            // Before there was a way to say it, a limit made a version exact.
            None => options.limit.is_some(),
        };
        match options.version.filter(|v| *v > 0) {
            None => Ok((None, None)),
            Some(version) => {
                self.reach(version)?;
                Ok((exact.then_some(version), None))
            }
        }
    }

    /// Refuses a revision that is still in the future.
    pub fn reach(&self, version: u64) -> Result<(), ApiStatus> {
        let current = self.store().revision();
        if version <= current {
            return Ok(());
        }
        let message = format!("Too large resource version: {version}, current: {current}");
        let cause = Cause {
            reason: "ResourceVersionTooLarge".to_owned(),
            message: "Too large resource version".to_owned(),
            field: String::new(),
        };
        let mut api_status = ApiStatus::timeout(message).with_causes(vec![cause]);
        if let Some(details) = &mut api_status.details {
            details.retry_after_seconds = 1;
        }
        Err(api_status)
    }
}

fn check_version_match(options: &ListOptions) -> Result<(), ApiStatus> {
    let Some(how) = options.version_match else { return Ok(()) };
    let forbidden = |why: &str| {
        let message = format!("resourceVersionMatch is invalid: resourceVersionMatch: Forbidden: {why}");
        Err(ApiStatus::new(422, "Invalid", message))
    };
    match (how, options.version) {
        _ if options.continue_token.is_some() => {
            forbidden("resourceVersionMatch is forbidden when continue is provided")
        }
        (_, None) => forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"),
        (VersionMatch::Exact, Some(0)) => {
            forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"")
        }
        _ => Ok(()),
    }
}

// === impl Lister ===

impl Lister {
    /// The next objects that are selected; a page may be empty. None when the list is through.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Document>>, ApiStatus> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        if !self.more || self.wanted == Some(0) {
            return Ok(None);
        }
        self.read(Some(self.revision)).await.map(Some).map_err(refuse)
    }

    /// Whether the store has more than was read.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// What to say at the end.
    #[must_use]
    pub fn end(&self) -> End {
        if !self.more {
            return End::default();
        }
        let prefix = self.selection.prefix();
        let start = self.after.as_deref().and_then(|key| key.strip_prefix(&prefix)).unwrap_or_default();
        let revision = i64::try_from(self.revision).unwrap_or(-1);
        let remaining = if self.selection.is_filtering() { None } else { self.remaining };
        End { continue_token: Some(Token::encode(revision, start)), remaining }
    }

    /// Bytes of documents that were read and not handed out.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.first.iter().flatten().map(Document::size).sum()
    }

    async fn read(&mut self, at: Option<u64>) -> Result<Vec<Document>, ReadError> {
        if let Some(key) = self.selection.key() {
            return self.read_one(&key, at).await;
        }
        let limit = match self.wanted {
            Some(wanted) if !self.selection.is_filtering() => wanted.min(PAGE),
            _ => PAGE,
        };
        let asked = store::ListOptions {
            prefix: self.selection.prefix().into(),
            after: self.after.clone(),
            limit,
            max_bytes: self.page_bytes,
            at,
            count: self.wanted.is_some() && !self.selection.is_filtering(),
        };
        let page = self.store.list(asked).await?;
        self.revision = page.revision;
        self.more = page.more;
        self.remaining = Some(page.remaining);
        let entries = page.entries.len();
        let mut out = Vec::with_capacity(entries);
        for (i, entry) in page.entries.into_iter().enumerate() {
            let document = from_entry(entry);
            self.after = Some(document.key.clone());
            if self.selection.takes(&document) {
                out.push(document);
            }
            if self.wanted.is_some_and(|wanted| out.len() >= wanted) {
                self.more = self.more || i + 1 < entries;
                break;
            }
        }
        if let Some(wanted) = &mut self.wanted {
            *wanted -= out.len();
        }
        Ok(out)
    }

    async fn read_one(&mut self, key: &str, at: Option<u64>) -> Result<Vec<Document>, ReadError> {
        self.more = false;
        let found = match at {
            Some(at) => {
                self.revision = at;
                self.store.get_at(key, at).await?
            }
            None => {
                // Read first: a revision newer than the object would hide its next change from a watcher.
                self.revision = self.store.revision();
                self.store.get(key).await?
            }
        };
        self.revision = self.revision.max(found.as_ref().map_or(0, |e| e.rev));
        Ok(found.map(from_entry).filter(|d| self.selection.takes(d)).into_iter().collect())
    }

    /// The token is too old; says so, and how to go on regardless.
    fn expired(&self) -> ApiStatus {
        let prefix = self.selection.prefix();
        let start = self.after.as_deref().and_then(|key| key.strip_prefix(&prefix)).unwrap_or_default();
        let message = "The provided continue parameter is too old to display a consistent list result. You can \
                       start a new list without the continue parameter, or use the continue token in this \
                       response to retrieve the remainder of the results. Continuing with the provided token \
                       results in an inconsistent list - objects that were created, modified, or deleted between \
                       the time the first chunk was returned and now may show up in the list.";
        let mut api_status = ApiStatus::expired(message);
        api_status.details.get_or_insert_default().continue_token = Token::encode(-1, start);
        api_status
    }
}

fn refuse(error: ReadError) -> ApiStatus {
    match error {
        ReadError::Compacted(gone) => ApiStatus::expired(format!(
            "The resourceVersion for the provided list is too old: {} ({})",
            gone.requested, gone.compacted
        )),
        other => store_errors::of_read(&other),
    }
}

// === impl Token ===

impl Token {
    fn encode(rv: i64, start: &str) -> String {
        let token = Token { v: TOKEN_VERSION.to_owned(), rv, start: format!("{start}\0") };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
    }

    fn decode(text: &str) -> Result<Token, ApiStatus> {
        let bad = |why: &str| ApiStatus::bad_request(format!("continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| bad("illegal base64"))?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|_| bad("malformed"))?;
        if token.v != TOKEN_VERSION {
            return Err(bad("server does not recognize this encoded version"));
        }
        // A token comes from outside: it must not lead out of the kind's own place.
        if token.start.split('/').any(|part| part.is_empty() || part == "..") {
            return Err(bad("malformed start"));
        }
        Ok(token)
    }
}
