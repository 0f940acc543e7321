//! A client's deadline, told as such.
//!
//! The server ends a call by itself when its time is over, and says Cancelled; clients look for DeadlineExceeded. So a call that
//! may take long ends a moment earlier, in the right words.

use std::time::Duration;

use tonic::Status;
use tonic::metadata::MetadataMap;

/// Earlier than the server.
const MOMENT: Duration = Duration::from_millis(1);

/// How long the client wants to wait from the beginning of the call.
pub(super) fn of(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // Eight digits at most, as the protocol has it.
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

pub(super) async fn within<T>(
    limit: Option<Duration>,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let Some(limit) = limit else { return call.await };
    let left = limit.saturating_sub(MOMENT);
    let over = || Status::deadline_exceeded("context deadline exceeded");
    // Not begun at all if there is no time for it.
    if left.is_zero() {
        return Err(over());
    }
    tokio::time::timeout(left, call).await.unwrap_or_else(|_| Err(over()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read_and_nothing_else() {
        let read = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            of(&metadata)
        };
        let rows = [
            ("2H", Duration::from_secs(7200)),
            ("3M", Duration::from_secs(180)),
            ("5S", Duration::from_secs(5)),
            ("1m", Duration::from_millis(1)),
            ("998u", Duration::from_micros(998)),
            ("99999999n", Duration::from_nanos(99_999_999)),
        ];
        for (text, want) in rows {
            assert_eq!(read(text), Some(want), "{text}");
        }
        for text in ["", "5", "S", "-1S", "1x", "100000000S"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(of(&MetadataMap::new()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_takes_longer_says_so_in_the_words_of_its_client() {
        for limit in [Duration::from_millis(1), Duration::from_secs(1)] {
            let never = std::future::pending::<Result<(), Status>>();
            let status = within(Some(limit), never).await.unwrap_err();
            assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        }
        within(None, async { Ok(()) }).await.unwrap();
    }
}
