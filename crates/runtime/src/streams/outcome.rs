//! What a client is told of how its command ended.

use serde_json::json;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Success,
    /// Other than zero.
    Code(i32),
    /// It could not be run, or nobody knows how it ended.
    Failure(String),
}

// === impl Outcome ===

impl Outcome {
    pub(super) fn of_code(code: i32) -> Outcome {
        if code == 0 { Outcome::Success } else { Outcome::Code(code) }
    }

    /// A Status, as all newer protocols have it.
    pub(super) fn status(&self) -> Vec<u8> {
        let status = match self {
            Outcome::Success => json!({ "metadata": {}, "status": "Success" }),
            Outcome::Code(code) => json!({
                "metadata": {}, "status": "Failure", "message": Outcome::words(*code), "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Outcome::Failure(why) => json!({
                "metadata": {}, "status": "Failure", "message": format!("Internal error occurred: {why}"),
                "reason": "InternalError", "details": { "causes": [{ "message": why }] }, "code": 500,
            }),
        };
        status.to_string().into_bytes()
    }

    /// Words, of which there are none when all went well, as the older protocols have it.
    pub(super) fn text(&self) -> Vec<u8> {
        match self {
            Outcome::Success => Vec::new(),
            Outcome::Code(code) => Outcome::words(*code).into_bytes(),
            Outcome::Failure(why) => why.clone().into_bytes(),
        }
    }

    fn words(code: i32) -> String {
        format!("command terminated with non-zero exit code: {code}")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_told_as_clients_look_for_it() {
        let status: serde_json::Value = serde_json::from_slice(&Outcome::of_code(7).status()).unwrap();
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(status["details"]["causes"][0], json!({ "reason": "ExitCode", "message": "7" }));
        assert_eq!(Outcome::of_code(0).status(), br#"{"metadata":{},"status":"Success"}"#);
        assert!(Outcome::of_code(0).text().is_empty());
    }
}
