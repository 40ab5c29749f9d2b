"""What a reviewer who pulls the plug would try: torn files, lost pages, failed syncs, full disks, kills."""
