#![allow(clippy::unwrap_used, clippy::print_stderr)]

use super::*;

fn tuple(out: &mut Writer, kind: u16, protocol: u8, from: SocketAddr, to: SocketAddr) {
    let ip = |out: &mut Writer, kind: [u16; 2], ip: IpAddr| match ip {
        IpAddr::V4(ip) => out.bytes(kind[0], &ip.octets()),
        IpAddr::V6(ip) => out.bytes(kind[1], &ip.octets()),
    };
    let tuple = out.nest(kind);
    let nest = out.nest(TUPLE_IP);
    ip(out, [1, 3], from.ip());
    ip(out, [2, 4], to.ip());
    out.close(nest);
    let nest = out.nest(TUPLE_PROTOCOL);
    out.u8(1, protocol);
    out.bytes(2, &from.port().to_be_bytes());
    out.bytes(3, &to.port().to_be_bytes());
    out.close(nest);
    out.close(tuple);
}

/// Makes an entry as the kernel would for a flow that was translated.
fn insert(table: &mut Conntrack, protocol: u8, from: &str, to: &str, endpoint: &str) -> Result<(), Errno> {
    const CREATE: u16 = 0x400;
    const STATUS: u16 = 3;
    const TIMEOUT: u16 = 7;
    const CONFIRMED_AND_SEEN_REPLY: u32 = 0xa;
    let [from, to, endpoint] = [from, to, endpoint].map(|text| text.parse::<SocketAddr>().unwrap());
    let mut out = Writer::default();
    let sequence = table.netlink.next_sequence();
    let message = out.begin(NEW, FLAG_ACK | CREATE, sequence, family(to.is_ipv6()), 0);
    tuple(&mut out, TUPLE_ORIGINAL, protocol, from, to);
    tuple(&mut out, TUPLE_REPLY, protocol, endpoint, from);
    out.bytes(STATUS, &CONFIRMED_AND_SEEN_REPLY.to_be_bytes());
    out.bytes(TIMEOUT, &60u32.to_be_bytes());
    out.end(message);
    table.netlink.order(&out.into_bytes(), sequence).unwrap()
}

#[allow(unsafe_code)]
fn enter_new_namespace() -> bool {
    // SAFETY: CLONE_NEWNET moves this thread alone, and its file descriptors stay what they were.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}

/// In a network namespace of a thread's own, which goes with the thread.
#[test]
fn entries_are_listed_and_deleted_one_by_one() {
    std::thread::spawn(|| {
        if !enter_new_namespace() {
            eprintln!("skipped: no right to make a network namespace");
            return;
        }
        let mut table = Conntrack::open().unwrap();
        let made = insert(&mut table, 17, "10.0.0.9:5000", "10.96.0.10:53", "10.244.0.5:5353");
        if made == Err(Errno::OPNOTSUPP) || made == Err(Errno::INVAL) {
            eprintln!("skipped: this kernel cannot be told of connections");
            return;
        }
        made.unwrap();
        insert(&mut table, 17, "10.0.0.9:5001", "10.96.0.10:53", "10.244.0.6:5353").unwrap();
        insert(&mut table, 17, "[fd00::9]:5001", "[fd96::10]:53", "[fd44::6]:5353").unwrap();
        let all = table.list(false, |_| true).unwrap();
        assert_eq!(all.len(), 2);
        let stale = table.list(false, |e| e.answers_from.ip() == IpAddr::from([10, 244, 0, 5])).unwrap();
        assert_eq!(stale.len(), 1);
        assert_eq!(stale[0].destination, "10.96.0.10:53".parse().unwrap());
        assert_eq!((stale[0].protocol, stale[0].source.port()), (17, 5000));
        assert!(table.delete(&stale[0]).unwrap());
        assert!(!table.delete(&stale[0]).unwrap(), "gone is gone");
        let left = table.list(false, |_| true).unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].source.port(), 5001);
        let v6 = table.list(true, |_| true).unwrap();
        assert_eq!((v6.len(), v6[0].answers_from), (1, "[fd44::6]:5353".parse().unwrap()));
        assert!(table.delete(&v6[0]).unwrap());
    })
    .join()
    .unwrap();
}

#[test]
fn what_is_no_entry_is_not_read() {
    for bytes in [&[][..], &[0; 7], &[8, 0, 1, 0x80, 4, 0, 1, 0]] {
        assert_eq!(Entry::read(bytes), None);
    }
}
