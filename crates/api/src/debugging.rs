//! `/debug/pprof` and `/debug/flags`, as a component answers that has no Go in it: nothing there could be read by
//! `go tool pprof`, and what can be told is told.

use base::verbosity::Verbosity;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};

const GO_PROFILES: [&str; 9] =
    ["allocs", "block", "goroutine", "heap", "mutex", "profile", "symbol", "threadcreate", "trace"];

/// Which profiles there are.
pub fn profiles() -> Response<String> {
    let rest = "The other profiles are those of a Go program, which this is not.";
    page(StatusCode::OK, format!("/debug/pprof/\n\nProfiles:\ncmdline\n\n{rest}\n"))
}

/// One profile. `command_line` says how this process was started: words with a zero byte between them, as the kernel and
/// upstream show it.
pub fn profile(name: &str, command_line: impl FnOnce() -> String) -> Response<String> {
    if name == "cmdline" {
        return page(StatusCode::OK, command_line());
    }
    let (status, text) = match GO_PROFILES.contains(&name) {
        true => (
            StatusCode::NOT_IMPLEMENTED,
            format!("the profile {name:?} is one of a Go program, which this is not\n"),
        ),
        false => (StatusCode::NOT_FOUND, format!("Unknown profile {name:?}\n")),
    };
    page(status, text)
}

/// Which settings can be changed while we run.
pub fn settings() -> Response<String> {
    let page = "<html>\n<head>\n<title>/debug/flags/</title>\n</head>\n<body>\n/debug/flags/<br>\n<br>\nflags:<br>\n\
                <table>\n<tr>v<br>\n</table>\n<br>\nfull flags configurable<br>\n</body>\n</html>\n";
    respond(StatusCode::OK, "text/html; charset=utf-8", page.to_owned())
}

/// Sets the level at which the log is written, until it is set again or the process ends. Says which it is, if it was one,
/// and what to answer.
pub fn set_verbosity(dial: &Verbosity, body: &[u8]) -> (Option<u32>, Response<String>) {
    match dial.ask(&String::from_utf8_lossy(body)) {
        Ok(level) => (Some(level), setting(StatusCode::OK, Verbosity::answer(level))),
        Err(refusal) => (None, setting(StatusCode::BAD_REQUEST, refusal)),
    }
}

/// The verbosity can be set, not asked for.
pub fn only_set() -> Response<String> {
    setting(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n".to_owned())
}

fn page(status: StatusCode, text: String) -> Response<String> {
    respond(status, "text/plain; charset=utf-8", text)
}

fn setting(status: StatusCode, text: String) -> Response<String> {
    respond(status, "text/plain", text)
}

fn respond(status: StatusCode, content: &'static str, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_told_refused_or_unknown() {
        let profile = |name| profile(name, || "kubelet\0--v=2".to_owned());
        assert_eq!(profile("cmdline").body(), "kubelet\0--v=2");
        for (name, status) in [("heap", 501), ("trace", 501), ("nothing", 404), ("", 404)] {
            assert_eq!(profile(name).status(), status, "{name}");
        }
        assert!(profiles().body().contains("\ncmdline\n"));
    }

    #[test]
    fn a_level_is_set_and_anything_else_is_refused() {
        let dial = Verbosity::new(2);
        assert_eq!(set_verbosity(&dial, b"4").0, Some(4));
        let (level, refusal) = set_verbosity(&dial, b"loud");
        assert_eq!((level, refusal.status(), dial.get()), (None, StatusCode::BAD_REQUEST, 4));
        assert_eq!(only_set().headers()[CONTENT_TYPE], "text/plain");
    }
}
