//! The agent's own log.

use super::Check;
use crate::config::gates::Gates;
use crate::config::kubelet::types::KubeletConfiguration;

pub(super) fn check(c: &KubeletConfiguration, gates: &Gates, check: &mut Check) {
    let log = &c.logging;
    check.one_of("logging.format", &log.format, &["text", "json"]);
    check.range("logging.verbosity", log.verbosity, 0, i32::MAX as u32);
    if log.flush_frequency.is_negative() {
        let text = format!("{} must not be negative", log.flush_frequency);
        check.fail("logging.flushFrequency", text);
    }
    if !log.vmodule.is_empty() && log.format != "text" {
        check.fail("logging.vmodule", "works with the text format only");
    }
    for (i, item) in log.vmodule.iter().enumerate() {
        let path = format!("logging.vmodule[{i}]");
        if item.file_pattern.is_empty() || item.file_pattern.contains(['=', ',']) {
            check.fail(&path, "filePattern must not be empty or contain '=' or ','");
        }
        check.range(&path, item.verbosity, 0, i32::MAX as u32);
    }
    if gates.enabled("LoggingAlphaOptions") {
        return;
    }
    for (format, options) in [("text", &log.options.text), ("json", &log.options.json)] {
        let text = "needs feature gate LoggingAlphaOptions";
        if options.split_stream {
            check.fail(&format!("logging.options.{format}.splitStream"), text);
        }
        if !options.info_buffer_size.is_zero() {
            check.fail(&format!("logging.options.{format}.infoBufferSize"), text);
        }
    }
}
