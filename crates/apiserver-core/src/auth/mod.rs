//! May they? RBAC, the node authorizer, and the rules of certificate signing requests.

pub mod authz;
pub mod csr;
pub mod escalation;
pub mod node;
pub mod rbac;
pub mod verdict;
