//! Every KubeProxyConfiguration field: its kind, its default, and whether this build acts on it.
//!
//! This table is the source of truth for decoding, defaulting, `/configz` and the compatibility
//! page. A new field is a row here and a line in `types.rs`; a test keeps the two equal.

use crate::config::doc::{Default as D, Field, FieldType, Shape, Standing};
use FieldType::{
    Bool, BoolMap, Duration, DurationOrNanos, Float, Int32, ObjectList, Quantity, Text, TextList, Uint32,
};
use Standing::{Honoured as YES, Inert as INERT, NotYet as NO};

/// A field whose zero means unset.
const fn plain(path: &'static str, kind: FieldType, default: D, standing: Standing) -> Field {
    Field { path, kind, default, shape: Shape::Plain, standing }
}

/// A field whose explicit zero counts.
const fn pointer(path: &'static str, kind: FieldType, default: D, standing: Standing) -> Field {
    Field { path, kind, default, shape: Shape::Pointer, standing }
}

/// A field without default.
const fn empty(path: &'static str, kind: FieldType, standing: Standing) -> Field {
    plain(path, kind, D::Absent, standing)
}

#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    empty("featureGates", BoolMap, YES),
    // API client
    empty("clientConnection.kubeconfig", Text, YES),
    empty("clientConnection.acceptContentTypes", Text, NO),
    plain("clientConnection.contentType", Text, D::Text("application/vnd.kubernetes.protobuf"), NO),
    plain("clientConnection.qps", Float, D::Float(5.0), YES),
    plain("clientConnection.burst", Int32, D::Int(10), YES),
    plain("configSyncPeriod", Duration, D::Text("15m0s"), NO),
    // Log
    plain("logging.format", Text, D::Text("text"), YES),
    plain("logging.flushFrequency", DurationOrNanos, D::Text("5s"), NO),
    pointer("logging.verbosity", Uint32, D::Int(0), YES),
    empty("logging.vmodule", ObjectList, YES),
    empty("logging.options.text.splitStream", Bool, NO),
    pointer("logging.options.text.infoBufferSize", Quantity, D::Text("0"), NO),
    empty("logging.options.json.splitStream", Bool, NO),
    pointer("logging.options.json.infoBufferSize", Quantity, D::Text("0"), NO),
    // Identity and servers
    empty("hostnameOverride", Text, YES),
    plain("bindAddress", Text, D::Text("0.0.0.0"), YES),
    empty("healthzBindAddress", Text, YES),
    empty("metricsBindAddress", Text, YES),
    empty("bindAddressHardFail", Bool, YES),
    empty("enableProfiling", Bool, YES),
    empty("showHiddenMetricsForVersion", Text, YES),
    // Modes
    empty("mode", Text, YES),
    pointer("iptables.masqueradeBit", Int32, D::Int(14), YES),
    empty("iptables.masqueradeAll", Bool, YES),
    pointer("iptables.localhostNodePorts", Bool, D::Bool(true), YES),
    plain("iptables.syncPeriod", Duration, D::Text("30s"), YES),
    plain("iptables.minSyncPeriod", Duration, D::Text("1s"), YES),
    plain("ipvs.syncPeriod", Duration, D::Text("30s"), YES),
    empty("ipvs.minSyncPeriod", Duration, YES),
    empty("ipvs.scheduler", Text, YES),
    empty("ipvs.excludeCIDRs", TextList, YES),
    empty("ipvs.strictARP", Bool, YES),
    empty("ipvs.tcpTimeout", Duration, YES),
    empty("ipvs.tcpFinTimeout", Duration, YES),
    empty("ipvs.udpTimeout", Duration, YES),
    pointer("nftables.masqueradeBit", Int32, D::Int(14), YES),
    empty("nftables.masqueradeAll", Bool, YES),
    plain("nftables.syncPeriod", Duration, D::Text("30s"), YES),
    plain("nftables.minSyncPeriod", Duration, D::Text("1s"), YES),
    empty("winkernel.networkName", Text, INERT),
    empty("winkernel.sourceVip", Text, INERT),
    empty("winkernel.enableDSR", Bool, INERT),
    empty("winkernel.rootHnsEndpointName", Text, INERT),
    empty("winkernel.forwardHealthCheckVip", Bool, INERT),
    // Which traffic
    plain("detectLocalMode", Text, D::Text("ClusterCIDR"), YES),
    empty("detectLocal.bridgeInterface", Text, YES),
    empty("detectLocal.interfaceNamePrefix", Text, YES),
    empty("clusterCIDR", Text, YES),
    empty("nodePortAddresses", TextList, YES),
    // The machine
    pointer("oomScoreAdj", Int32, D::Int(-999), YES),
    pointer("conntrack.maxPerCore", Int32, D::Int(32_768), YES),
    pointer("conntrack.min", Int32, D::Int(131_072), YES),
    pointer("conntrack.tcpEstablishedTimeout", Duration, D::Text("24h0m0s"), YES),
    pointer("conntrack.tcpCloseWaitTimeout", Duration, D::Text("1h0m0s"), YES),
    empty("conntrack.tcpBeLiberal", Bool, YES),
    empty("conntrack.udpTimeout", Duration, YES),
    empty("conntrack.udpStreamTimeout", Duration, YES),
    empty("portRange", Text, INERT),
    empty("windowsRunAsService", Bool, INERT),
];
