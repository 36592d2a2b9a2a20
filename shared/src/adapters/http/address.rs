//! Which addresses are everybody's.
//!
//! Sources: the IANA registries of special-purpose addresses for IPv4 and IPv6 (RFC 6890 and its updates). What is not known
//! to be global is not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Networks of IPv4 that are not global: address and number of leading bits.
const SPECIAL: [(Ipv4Addr, u32); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Tells whether an address is one of the global internet.
pub(super) fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let bits = u32::from(ip);
            !SPECIAL
                .iter()
                .any(|(network, length)| (bits ^ u32::from(*network)) >> (32 - length) == 0)
        }
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => is_public(ip.into()),
            None => is_public_v6(ip),
        },
    }
}

/// Of IPv6, only 2000::/3 is given out; in it, some networks lead into IPv4 or nowhere.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [first, second, ..] = ip.segments();
    let is_given_out = first & 0xe000 == 0x2000;
    let is_protocol = first == 0x2001 && second < 0x0200; // Teredo, benchmarks, ORCHID and others
    let is_documentation = (first == 0x2001 && second == 0x0db8) || first == 0x3fff;
    let is_6to4 = first == 0x2002;
    is_given_out && !is_protocol && !is_documentation && !is_6to4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_private_networks_are_told_from_those_of_the_internet() {
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2001::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "2600::1",
            "2a00:1450::1",
            "2001:4860::8888",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }
}
