//! Who a container runs as: what the CRI and the image say, looked up in the image's own passwd and group files.

use std::collections::BTreeSet;

/// A file of the image is read so far; names behind that are not found.
pub const FILE_MAX: usize = 1 << 20;
/// The kernel takes no more.
const GROUPS_MAX: usize = 65_536;

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `run_as_user`; wins over the names.
    pub user: Option<i64>,
    /// `run_as_username`.
    pub username: String,
    pub group: Option<i64>,
    pub supplemental: Vec<i64>,
    /// The groups of the image's own files are not added.
    pub is_strict: bool,
    /// `User` of the image: `user`, `uid`, each with `:group` or `:gid`.
    pub image: String,
}

/// Who it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// Without doubles, sorted; the first group among them.
    pub groups: Vec<u32>,
    /// For `HOME`.
    pub home: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUser {
    #[error("unable to find user {0}: no matching entries in passwd file")]
    NoUser(String),
    #[error("unable to find group {0}: no matching entries in group file")]
    NoGroup(String),
    #[error("runAsGroup is set without runAsUser or runAsUserName")]
    GroupAlone,
    #[error("{0} is not an id of a user or group")]
    Id(i64),
    #[error("{0} supplemental groups are more than the kernel takes")]
    TooMany(usize),
}

#[derive(Clone, Copy, Debug)]
struct Passwd<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

#[derive(Clone, Copy, Debug)]
struct Group<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

/// Whether a user's files are needed at all, is not for the caller to know: it gives what the image has.
pub fn resolve(wanted: &Wanted, passwd: &str, group: &str) -> Result<User, BadUser> {
    if wanted.group.is_some() && wanted.user.is_none() && wanted.username.is_empty() {
        return Err(BadUser::GroupAlone);
    }
    // Who says the user by hand leaves the image's group behind too.
    let (user, image_group) = match wanted.user {
        Some(uid) => (id(uid)?.to_string(), None),
        None if !wanted.username.is_empty() => (wanted.username.clone(), None),
        None => match wanted.image.split_once(':') {
            Some((user, group)) => (user.to_owned(), Some(group).filter(|g| !g.is_empty())),
            None => (wanted.image.clone(), None),
        },
    };
    let entry = find_user(&user, passwd)?;
    let gid = match (wanted.group, image_group) {
        (Some(gid), _) => id(gid)?,
        (None, Some(name)) => find_group(name, group)?,
        (None, None) => entry.gid,
    };
    let mut groups = BTreeSet::from([gid]);
    for gid in &wanted.supplemental {
        groups.insert(id(*gid)?);
    }
    // As upstream: membership in the image's files counts for the user's name.
    if !wanted.is_strict && !entry.name.is_empty() {
        let of = |g: &Group<'_>| g.members.split(',').any(|member| member == entry.name);
        groups.extend(group_entries(group).filter(of).map(|g| g.gid));
    }
    if groups.len() > GROUPS_MAX {
        return Err(BadUser::TooMany(groups.len()));
    }
    let home = if entry.home.is_empty() { "/" } else { entry.home };
    Ok(User { uid: entry.uid, gid, groups: groups.into_iter().collect(), home: home.to_owned() })
}

fn id(value: i64) -> Result<u32, BadUser> {
    u32::try_from(value).ok().filter(|id| *id != u32::MAX).ok_or(BadUser::Id(value))
}

/// A number need not be in the file; it then has group 0, as with upstream. A name must.
fn find_user<'a>(user: &'a str, passwd: &'a str) -> Result<Passwd<'a>, BadUser> {
    let user = if user.is_empty() { "0" } else { user };
    let number = user.parse::<u32>().ok().filter(|id| *id != u32::MAX);
    let mut entries = passwd_entries(passwd);
    let found = entries.find(|entry| entry.name == user || number.is_some_and(|n| n == entry.uid));
    match (found, number) {
        (Some(entry), _) => Ok(entry),
        (None, Some(uid)) => Ok(Passwd { name: "", uid, gid: 0, home: if uid == 0 { "/root" } else { "/" } }),
        (None, None) => Err(BadUser::NoUser(user.to_owned())),
    }
}

fn find_group(name: &str, group: &str) -> Result<u32, BadUser> {
    let number = name.parse::<u32>().ok().filter(|id| *id != u32::MAX);
    let found = group_entries(group).find(|g| g.name == name || number.is_some_and(|n| n == g.gid));
    found.map(|g| g.gid).or(number).ok_or_else(|| BadUser::NoGroup(name.to_owned()))
}

fn passwd_entries(text: &str) -> impl Iterator<Item = Passwd<'_>> {
    lines(text).filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let home = fields.nth(1).unwrap_or_default();
        Some(Passwd { name, uid: uid.parse().ok()?, gid: gid.parse().ok()?, home })
    })
}

fn group_entries(text: &str) -> impl Iterator<Item = Group<'_>> {
    lines(text).filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _, gid) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Group { name, gid: gid.parse().ok()?, members: fields.next().unwrap_or_default() })
    })
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# a remark\nbroken:line\n\
        default-user:x:1000:1000::/home/default:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\n";
    const GROUP: &str =
        "root:x:0:\nwww-data:x:33:\nin-image:x:50000:someone,default-user\nothers:x:60000:someone\n";

    fn image(user: &str) -> Wanted {
        Wanted { image: user.into(), ..Wanted::default() }
    }

    #[test]
    fn users_are_who_the_image_and_the_pod_say() {
        let by_id = |uid| Wanted { user: Some(uid), ..Wanted::default() };
        let rows = [
            (image(""), (0, 0, vec![0])),
            (image("1000"), (1000, 1000, vec![1000, 50_000])),
            (image("www-data"), (33, 33, vec![33])),
            (image("1003:1004"), (1003, 1004, vec![1004])),
            (image("www-data:1004"), (33, 1004, vec![1004])),
            (image("4000"), (4000, 0, vec![0])),
            (by_id(1000), (1000, 1000, vec![1000, 50_000])),
            (Wanted { image: "33:33".into(), ..by_id(7) }, (7, 0, vec![0])),
            (Wanted { username: "www-data".into(), ..image("1000") }, (33, 33, vec![33])),
            (Wanted { group: Some(9), ..by_id(1000) }, (1000, 9, vec![9, 50_000])),
            (Wanted { supplemental: vec![5, 5, 4], ..by_id(1000) }, (1000, 1000, vec![4, 5, 1000, 50_000])),
            (Wanted { is_strict: true, supplemental: vec![4], ..by_id(1000) }, (1000, 1000, vec![4, 1000])),
        ];
        for (wanted, (uid, gid, groups)) in rows {
            let user = resolve(&wanted, PASSWD, GROUP).unwrap();
            assert_eq!((user.uid, user.gid, user.groups), (uid, gid, groups), "{wanted:?}");
        }
        assert_eq!(resolve(&image("www-data"), PASSWD, GROUP).unwrap().home, "/var/www");
    }

    #[test]
    fn what_cannot_be_found_is_named() {
        let rows = [
            (image("nobody"), "unable to find user nobody: no matching entries in passwd file"),
            (image("root:staff"), "unable to find group staff: no matching entries in group file"),
            (
                Wanted { group: Some(1), ..Wanted::default() },
                "runAsGroup is set without runAsUser or runAsUserName",
            ),
            (Wanted { user: Some(-1), ..Wanted::default() }, "-1 is not an id of a user or group"),
            (
                Wanted { user: Some(4_294_967_295), ..Wanted::default() },
                "4294967295 is not an id of a user or group",
            ),
        ];
        for (wanted, want) in rows {
            assert_eq!(resolve(&wanted, PASSWD, GROUP).unwrap_err().to_string(), want);
        }
    }

    /// As in CVE-2020-15257's family: a number too large must not become root.
    #[test]
    fn a_number_beyond_all_ids_is_a_name_that_nobody_has() {
        for user in ["4294967296", "4294967295", "-1", "18446744073709551616"] {
            assert!(resolve(&image(user), PASSWD, GROUP).is_err(), "{user}");
        }
    }

    proptest! {
        #[test]
        fn any_files_are_survived(passwd in ".{0,300}", group in ".{0,300}", user in ".{0,20}") {
            let _ = resolve(&image(&user), &passwd, &group);
        }
    }
}
