"""What several folders of tests share: hosts, servers, and those whom hosts ask."""
