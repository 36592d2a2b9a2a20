//! Classifies IP addresses by network, and decides which networks a connection may reach.
//!
//! Sources: the IANA registries of special-purpose addresses for IPv4 and IPv6 (RFC 6890 and its
//! updates). An address that is not known to be global counts as not global.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The private networks of IPv4: address and number of leading bits.
const PRIVATE: [(Ipv4Addr, u32); 4] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
];

/// The other networks of IPv4 that are not global.
const SPECIAL: [(Ipv4Addr, u32); 11] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// The kind of network that an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    /// The global internet.
    Public,
    /// A private network: RFC 1918, RFC 6598, and unique local addresses (RFC 4193).
    Private,
    /// This machine, its link, and its metadata service.
    Local,
    /// A network without servers, such as multicast or documentation.
    Special,
}

/// The networks that a connection may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The global internet.
    Public,
    /// Also private networks.
    Private,
    /// Also this machine and its link.
    Local,
    /// Any address.
    Everything,
}

impl Reach {
    /// All values, in order.
    pub(super) const ALL: [Self; 4] = [Self::Public, Self::Private, Self::Local, Self::Everything];

    /// Returns whether a connection may reach an address.
    pub(super) fn allows(self, ip: IpAddr) -> bool {
        match (network(ip), self) {
            (_, Self::Everything) | (Network::Public, _) => true,
            (Network::Private, Self::Private | Self::Local) => true,
            (Network::Local, Self::Local) => true,
            (Network::Private | Network::Local | Network::Special, _) => false,
        }
    }
}

/// Returns whether an address belongs to this machine or its link.
pub(super) fn is_local(ip: IpAddr) -> bool {
    network(ip) == Network::Local
}

fn network(ip: IpAddr) -> Network {
    match ip {
        IpAddr::V4(ip) => {
            let bits = u32::from(ip);
            let is_in = |(network, length): &(Ipv4Addr, u32)| {
                (bits ^ u32::from(*network)) >> (32 - length) == 0
            };
            // 0.0.0.0 is routed to this machine.
            if ip.is_loopback() || ip.is_link_local() || ip.is_unspecified() {
                Network::Local
            } else if PRIVATE.iter().any(is_in) {
                Network::Private
            } else if SPECIAL.iter().any(is_in) {
                Network::Special
            } else {
                Network::Public
            }
        }
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => network(ip.into()),
            None => network_v6(ip),
        },
    }
}

fn network_v6(ip: Ipv6Addr) -> Network {
    let [first, second, ..] = ip.segments();
    // The metadata service of EC2 is in a unique local network: fd00:ec2::/32 (Amazon EC2 User
    // Guide, "Access instance metadata").
    let is_metadata = (first, second) == (0xfd00, 0x0ec2);
    if ip.is_loopback() || ip.is_unspecified() || ip.is_unicast_link_local() || is_metadata {
        Network::Local
    } else if ip.is_unique_local() {
        Network::Private
    } else if is_public_v6(ip) {
        Network::Public
    } else {
        Network::Special
    }
}

/// Returns whether an address is global. Of IPv6, only 2000::/3 is allocated, and some of its
/// networks map to IPv4 or are not routed.
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
    fn addresses_of_private_networks_are_distinguished_from_public_ones() {
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
            assert!(!Reach::Public.allows(private.parse().unwrap()), "{private}");
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
            assert!(Reach::Public.allows(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn a_private_source_reaches_private_networks_and_neither_this_machine_nor_its_metadata() {
        for private in [
            "10.1.2.3",
            "100.64.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "fd12::1",
        ] {
            let ip = private.parse().unwrap();
            assert!(
                Reach::Private.allows(ip) && Reach::Local.allows(ip),
                "{private}"
            );
        }
        for local in [
            "127.0.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "fe80::1",
            "fd00:ec2::254",
        ] {
            let ip = local.parse().unwrap();
            assert!(
                !Reach::Private.allows(ip) && Reach::Local.allows(ip),
                "{local}"
            );
        }
        for nothing in [
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "64:ff9b::7f00:1",
        ] {
            let ip = nothing.parse().unwrap();
            assert!(
                !Reach::Local.allows(ip) && Reach::Everything.allows(ip),
                "{nothing}"
            );
        }
    }
}
