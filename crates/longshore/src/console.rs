//! Words for the person at the terminal. Agents log through tracing instead.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

/// Writes to standard output; a closed pipe is not our business.
pub(crate) fn out(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Writes to standard error.
pub(crate) fn err(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// A command: what its line means, its help where that is asked for, and the one place where its error is told.
pub(crate) fn command<T, E: Display>(
    parsed: Result<Option<T>, impl Display>,
    usage: &str,
    run: impl FnOnce(T) -> Result<ExitCode, E>,
) -> ExitCode {
    let told = match parsed {
        Ok(Some(options)) => match run(options) {
            Ok(code) => return code,
            Err(error) => format!("error: {error}\n"),
        },
        Ok(None) => {
            out(usage);
            return ExitCode::SUCCESS;
        }
        Err(mistake) => format!("error: {mistake}\n\n{usage}"),
    };
    err(&told);
    ExitCode::FAILURE
}

/// Runs what waits for others, on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(|e| e.to_string())?.block_on(work))
}
